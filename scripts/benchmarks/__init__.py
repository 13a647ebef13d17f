"""Side-by-side measurements, called by `scripts/benchmark.py`."""

"""Level 0: the arithmetic, on CPU and GPU; knows neither cameras nor files."""

"""Level 3: scenes, masks and snapshots without a laboratory.

`scene` paints a scene, `camera` images it, `optical_bench` produces calibration frames.
"""

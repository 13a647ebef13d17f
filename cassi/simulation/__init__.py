"""Level 3: scenes, masks and snapshots without a laboratory.

`scene` paints, `camera` photographs, `optical_bench` makes the frames of a calibration.
"""

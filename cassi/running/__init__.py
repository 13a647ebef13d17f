"""Level 4: one snapshot, one frame too large for memory, or many, from measurement to result.

`front_door` is `cassi.reconstruct`, `tiling` and `many` are for large frames and for folders, `result` holds the cube
and writes it.
"""

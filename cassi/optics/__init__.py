"""Level 1: cameras, y = Phi x, and the snapshots that they record.

`single_disperser` is the camera, `protocol` the contract of all cameras, `measurement` a snapshot with its metadata.
"""

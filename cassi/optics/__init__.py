"""Level 1: cameras. What a snapshot is, y = Phi x, and what is measured about it.

`single_disperser` is the camera, `protocol` what every camera promises, `measurement` a snapshot with what is known
of it.
"""

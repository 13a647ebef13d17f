"""Level 3: the camera as it stands on the bench.

From frames it took (`estimate`), from snapshots of unknown scenes (`found_camera`, `refined_camera`), and how a
photograph from beside it lies on the scene (`side_registration`).
"""

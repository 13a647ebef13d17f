"""Level 3: the camera as it stands on the bench, from frames it took."""

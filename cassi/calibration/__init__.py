"""Level 3: the camera from frames captured on the bench, in known light."""

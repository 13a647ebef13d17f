"""Level 1: cameras. What a snapshot is, y = Phi x, and what is measured about it."""

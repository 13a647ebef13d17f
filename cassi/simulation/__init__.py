"""Level 3: scenes, masks and snapshots without a laboratory."""

"""Level 4: one snapshot, one frame too large for memory, or many, from measurement to result."""

"""Level 4: figures, colors, scores and the report page of a result."""

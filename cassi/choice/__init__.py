"""Level 3: what a snapshot is solved with, told from pixels that were held out."""

"""Level 5: the command line: arguments, exit codes, words for the terminal; no numerics, no physics."""

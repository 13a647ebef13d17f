"""Level 5: the command line: arguments, exit codes, words for the terminal; no numerics, no physics.

`main` has the commands; each is a file of that name.
"""

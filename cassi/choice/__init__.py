"""Level 3: what a snapshot is solved with, decided by held-out pixels.

`stages` has the stages of the default solver and the loop over them, `held_out` their judge, and `automatic` puts them
together; `by_name` serves those who name a solver.
"""

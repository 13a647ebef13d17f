"""Level 3: what a snapshot is solved with, told from pixels that were held out.

`automatic` chooses a `plan` from short runs (`candidates`), and `refine` runs it to its end; `by_name` serves those who
name a solver.
"""

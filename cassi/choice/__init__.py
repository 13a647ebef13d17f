"""Level 3: what a snapshot is solved with, told from pixels that were held out.

`automatic` makes a `plan` of first, short reconstructions (`candidates`), `refine` runs it to its end; `by_name` is for
those who name a solver.
"""

"""Level 3: the choices of the default solver, which held-out detector pixels decide.

`stages` holds its stages and `chain` the loop over them, `judge` compares their cubes at the pixels of `held_out`, and
`automatic` puts all together. `by_name` runs the other solvers.
"""

"""Level 3: the choices of the default solver, which `cassi.evidence` decides.

`stages` holds its stages and `chain` the loop over them, and `automatic` puts all together. `by_name` runs the other
solvers.
"""

"""Level 2: iterative solvers. Each states its update lines.

`gap` and `admm` are the field's, `subspace_tv` is the default solver's; `loop` is what all of them run in.
"""

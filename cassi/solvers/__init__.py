"""Level 2: iterative solvers. Each states its update lines.

`gap` and `admm` are the standard methods, `subspace_tv` the core of the default solver; all run in `loop`.
"""

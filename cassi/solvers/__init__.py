"""Level 2: iterative solvers. Each states its update lines; `textbook` has the shortest of them."""

"""Level 0: the arithmetic, on CPU and GPU; independent of cameras and files.

`shift_sum` states the sums in torch, `cpu` and `gpu` compute them in one pass, `dispatch` selects one of the two.
"""

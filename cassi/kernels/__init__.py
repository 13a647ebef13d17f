"""Level 0: the arithmetic, on CPU and GPU; knows neither cameras nor files.

`shift_sum` says in torch what is summed, `cpu` and `gpu` do the same in one pass, `dispatch` takes one of them.
"""

"""Level 3: which cube or camera is believed.

`held_out` draws detector pixels that no fit sees, `noise` estimates their noise, `misfit` says what errors of the mask
explain of them, and `judge` compares candidates by what is left.
"""

"""Level 1: what cubes look like, as functions of tensors that are independent of the optics.

`tv` is total variation, which `nonlocal_lowrank` and `learned` may follow; `spectral_basis` has the smooth spectra.
"""

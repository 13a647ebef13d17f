"""Level 1: what cubes look like. Pure functions of tensors that know nothing of the optics.

`tv` is total variation, `nonlocal_lowrank` and `learned` may follow it, `spectral_basis` has the few spectra.
"""

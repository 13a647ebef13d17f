"""Priors: pure functions of tensors that know nothing of the optics."""

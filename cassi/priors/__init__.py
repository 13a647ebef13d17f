"""Level 1: what cubes look like. Pure functions of tensors that know nothing of the optics."""

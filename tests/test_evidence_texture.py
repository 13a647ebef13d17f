"""Texture of bands: what all share is the scene's, what grows where light is weak is not."""

import numpy as np
import torch

from cassi.evidence.texture import texture, unresolved_bands


def test_texture_by_hand():
    """Of a plain cube with noise of 10 % it is that, but for what a Gaussian of 4 px keeps, and shared as drawn."""
    generator = torch.Generator().manual_seed(0)
    common, own = (torch.randn(n, 128, 128, generator=generator) for n in (1, 6))
    for shared, expected in ((0.0, 0.0), (1.0, 1.0), (0.5, None)):
        rms, coherence = texture(3 + 0.3 * (shared**0.5 * common + (1 - shared) ** 0.5 * own))
        np.testing.assert_allclose(rms, 0.1, rtol=0.03)
        # corr(c + o_1, 5 c + sum of five o) = 5 / sqrt(2 (25 + 5))
        np.testing.assert_allclose(coherence, 5 / 60**0.5 if expected is None else expected, atol=0.03)


def test_bands_whose_texture_only_they_have_are_named_where_light_is_weak():
    generator = torch.Generator().manual_seed(0)
    light = torch.tensor([0.1, 0.2, 0.6, 1.0, 0.9]).view(-1, 1, 1)
    scene = 1 + 0.1 * torch.randn(1, 96, 96, generator=generator)
    invented = 0.03 * torch.randn(5, 96, 96, generator=generator)
    assert unresolved_bands(light * scene) == ()
    assert unresolved_bands(light * scene + invented) == (0, 1)

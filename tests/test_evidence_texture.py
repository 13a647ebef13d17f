"""Texture of bands: what all share is the scene's, what grows where light is weak is not."""

import numpy as np
import torch

from cassi.evidence.texture import texture, unresolved_bands


def test_bands_whose_texture_only_they_have_are_named_where_light_is_weak():
    generator = torch.Generator().manual_seed(0)
    light = torch.tensor([0.1, 0.2, 0.6, 1.0, 0.9]).view(-1, 1, 1)
    scene = 1 + 0.1 * torch.randn(1, 96, 96, generator=generator)
    invented = 0.03 * torch.randn(5, 96, 96, generator=generator)
    assert unresolved_bands(light * scene) == ()
    for unit in (1e-15, 1, 1e15):
        assert unresolved_bands(unit * (light * scene + invented)) == (0, 1)


def test_texture_of_waves():
    """A wave of period p keeps 1 - exp(-2 pi^2 s^2 / p^2) of its amplitude, and bands in turn agree or do not."""
    j, p = np.arange(240)[None] + np.zeros((240, 1)), 12.0
    wave, other = np.sin(2 * np.pi * j / p), np.cos(2 * np.pi * j / p)
    x = np.stack([2 + 0.1 * wave, 4 + 0.8 * wave, 3 + 0.3 * other])
    rms, coherence = texture(torch.as_tensor(x))
    kept = (1 - np.exp(-2 * np.pi**2 * 16 / p**2)) / np.sqrt(2)
    np.testing.assert_allclose(rms, [kept * 0.05, kept * 0.2, kept * 0.1], rtol=0.02)
    np.testing.assert_allclose(coherence, [0.8 / np.hypot(0.8, 0.3), 0.1 / np.hypot(0.1, 0.3), 0.0], atol=0.03)

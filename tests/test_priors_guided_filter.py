"""The guided filter against the local regression that it is, solved window by window."""

import numpy as np
import torch

from cassi.priors.guided_filter import guided_filter

EPSILON = 0.2


def window_by_window(p: np.ndarray, g: np.ndarray, radius: int) -> np.ndarray:
    """The line a g + b through each window with a ridge on a, then the mean of the lines of all windows of a pixel."""
    height, width = g.shape
    places = [(i, j) for i in range(height) for j in range(width)]
    inside = {
        (i, j): (slice(max(0, i - radius), i + radius + 1), slice(max(0, j - radius), j + radius + 1))
        for i, j in places
    }
    ridge = EPSILON * np.mean([g[inside[at]].var() for at in places])
    lines = np.zeros((2, height, width))
    for at in places:
        u, v = g[inside[at]].ravel(), p[inside[at]].ravel()
        rows = np.stack([u - u.mean(), np.zeros_like(u)], 1)
        rows = np.concatenate([rows, [[np.sqrt(ridge * len(u)), 0.0]]])[:, :1]
        (a,) = np.linalg.lstsq(rows, np.append(v - v.mean(), 0.0), rcond=None)[0]
        lines[:, at[0], at[1]] = a, v.mean() - a * u.mean()
    found = np.zeros_like(g)
    for at in places:
        a, b = (line[inside[at]].mean() for line in lines)
        found[at] = a * g[at] + b
    return found


def test_it_is_a_regression_in_each_window():
    rng = np.random.default_rng(0)
    g, p = rng.random((9, 12)), rng.random((2, 9, 12))
    found = guided_filter(torch.as_tensor(p), torch.as_tensor(g)[None], radius=2, epsilon=EPSILON)
    np.testing.assert_allclose(found.numpy(), [window_by_window(one, g, 2) for one in p], rtol=1e-10)


def test_detail_that_the_guide_has_stays_and_other_detail_goes():
    generator = torch.Generator().manual_seed(0)
    g, noise = torch.rand(2, 1, 64, 64, generator=generator)
    same, other = guided_filter(torch.cat([3 * g + 1, noise]), g, epsilon=1e-6)
    torch.testing.assert_close(same, 3 * g[0] + 1, rtol=1e-4, atol=1e-4)
    assert (other - noise.mean()).std() < 0.4 * noise.std()
    flat = torch.ones_like(g)
    assert guided_filter(noise, flat).isfinite().all()
    batch = guided_filter(torch.stack([noise, 2 * noise]), torch.stack([g, g]))
    torch.testing.assert_close(batch[1], 2 * batch[0])

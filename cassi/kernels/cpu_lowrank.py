"""Groups of similar patches denoised by their singular values, compiled for the CPU."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from cassi.kernels.jit import Array, jit
from cassi.kernels.threads import SMALL, share_out

BLAS_ALONE = 1 << 18  # multiplications of a matrix product up to which OpenBLAS stays in the calling thread
_PARTS = 16  # that the groups of patches are cut into


def lowrank_groups(image: Tensor, groups: Tensor, patch: int) -> tuple[Tensor, Tensor]:
    """The groups of `cassi.priors.nonlocal_lowrank` denoised and put back: sums (H, W, K) and numbers of terms (H, W).

    Args:
        image: (H, W, K) contiguous, noise of standard deviation 1.
        groups: (n, m), places of patches, row by row over the image.
        patch: their side p [pixel].
    """
    height, width, bands = image.shape
    columns = width - patch + 1
    # parts of the groups, as many whatever the number of threads: each sums into rows of its own, added up in order
    parts = min(_PARTS, len(groups))
    bounds = np.array([len(groups) * k // parts for k in range(parts + 1)])
    rows = [groups[start:stop] // columns for start, stop in itertools.pairwise(bounds)]
    first = np.array([int(r.min()) for r in rows])
    last = np.array([int(r.max()) + patch for r in rows])
    total = np.zeros((parts, int((last - first).max()), width * bands), image.numpy().dtype)
    count = np.zeros((*total.shape[:2], width), total.dtype)
    arrays = (image.view(height, -1).numpy(), groups.contiguous().numpy(), bands, patch, bounds, first, total, count)
    share_out(_lowrank_groups, parts, 32 * SMALL, *arrays)
    summed, terms = torch.zeros(height, width * bands, dtype=image.dtype), torch.zeros(height, width, dtype=image.dtype)
    for part in range(parts):
        inside = slice(first[part], last[part])
        summed[inside] += torch.from_numpy(total[part, : last[part] - first[part]])
        terms[inside] += torch.from_numpy(count[part, : last[part] - first[part]])
    return summed.view(height, width, bands), terms


@jit
def _shrink(plane: Array) -> Array:
    """The rows, mean 0, cut down to the singular values that stand out of noise 1: `singular_value_gain`."""
    m, pixels = plane.shape
    low, high = np.float64(min(m - 1, pixels)), np.float64(max(m - 1, pixels))
    edge = (np.sqrt(low) + np.sqrt(high)) ** 2
    gram = np.dot(plane.T, plane)
    values, vectors = np.linalg.eigh(gram)
    scaled = np.zeros_like(vectors)
    for n in range(values.size):
        s = np.float64(values[n])
        if s > edge:
            gain = np.sqrt(max((s - low - high) ** 2 - 4 * low * high, 0.0)) / s
            for i in range(values.size):
                scaled[i, n] = vectors[i, n] * plane.dtype.type(gain)
    projection = np.dot(scaled, vectors.T)
    kept: Array = np.dot(plane, projection)
    return kept


@jit
def _largest_row_sum(matrix: Array) -> float:
    """max_i sum_j |a_ij|, which no eigenvalue exceeds (Gershgorin)."""
    most = 0.0
    for i in range(matrix.shape[0]):
        total = 0.0
        for j in range(matrix.shape[1]):
            total += abs(matrix[i, j])
        most = max(most, total)
    return most


@jit
def _cut_down(x: Array, covariance: Array, alive: float, turned: Array, plane: Array, rows: int) -> None:
    """The patches of a group x (m p^2, K), mean 0, cut down one component of their own basis after the other."""
    m, pixels = plane.shape
    bands = x.shape[1]
    # eigenvalues are energies: of components with no more than noise has, which come first, nothing is left
    energies, basis = np.linalg.eigh(covariance)
    dead = 0
    while dead < bands and energies[dead] < alive:
        dead += 1
    if dead == bands:
        x[:] = 0
        return
    kept = turned[: m * pixels * (bands - dead)].reshape(m * pixels, bands - dead)
    back = basis.T[dead:]
    some = back.T.copy()
    for top in range(0, m * pixels, rows):
        np.dot(x[top : top + rows], some, kept[top : top + rows])
    for k in range(bands - dead):
        for a in range(m):
            for j in range(pixels):
                plane[a, j] = kept[a * pixels + j, k]
        shrunk = _shrink(plane)
        for a in range(m):
            for j in range(pixels):
                kept[a * pixels + j, k] = shrunk[a, j]
    for top in range(0, m * pixels, rows):
        np.dot(kept[top : top + rows], back, x[top : top + rows])


@jit
def _lowrank_groups(
    image: Array, groups: Array, bands: int, patch: int, bounds: Array, first: Array, total: Array, count: Array,
    start: int, stop: int
) -> None:  # fmt: skip
    m, pixels, side = groups.shape[1], patch * patch, patch * bands
    columns = image.shape[1] // bands - patch + 1
    x = np.empty((m * pixels, bands), image.dtype)
    turned = np.empty(m * pixels * bands, image.dtype)
    lines = x.reshape(m * patch, side)  # the same memory, a line of a patch after the other
    mean = np.empty((patch, side), image.dtype)
    covariance, part_of = np.empty((bands, bands), image.dtype), np.empty((bands, bands), image.dtype)
    plane = np.empty((m, pixels), image.dtype)
    expected = (m - 1) * pixels
    alive = expected + 4 * np.sqrt(2.0 * expected)
    share = image.dtype.type(1 / m)
    rows = max(1, BLAS_ALONE // (bands * bands))
    for part in range(start, stop):
        for g in range(bounds[part], bounds[part + 1]):
            mean[:] = 0
            for a in range(m):
                top, left = groups[g, a] // columns, groups[g, a] % columns * bands
                for i in range(patch):
                    source, line, average = image[top + i, left : left + side], lines[a * patch + i], mean[i]
                    for j in range(side):
                        line[j] = source[j]
                        average[j] += source[j]
            mean *= share
            for a in range(m):
                for i in range(patch):
                    line, average = lines[a * patch + i], mean[i]
                    for j in range(side):
                        line[j] -= average[j]
            covariance[:] = 0
            for top in range(0, m * pixels, rows):
                piece = x[top : top + rows]
                np.dot(piece.T, piece, part_of)
                covariance += part_of
            if _largest_row_sum(covariance) > alive:
                _cut_down(x, covariance, alive, turned, plane, rows)
            else:
                x[:] = 0
            for a in range(m):
                top, left = groups[g, a] // columns, groups[g, a] % columns
                for i in range(patch):
                    row = top + i - first[part]
                    target = total[part, row, left * bands : left * bands + side]
                    line, average = lines[a * patch + i], mean[i]
                    for j in range(side):
                        target[j] += line[j] + average[j]
                    for j in range(left, left + patch):
                        count[part, row, j] += 1

"""Groups of similar patches and their filters on the CPU, see `cassi.priors.nonlocal_lowrank.GroupFilters`."""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cassi.kernels.jit import Array, jit
from cassi.kernels.threads import SMALL, share_out

BLAS_ALONE = 1 << 18  # multiplications per matrix product up to which OpenBLAS stays in the calling thread
_PARTS = 16  # into which the groups of patches are divided


class CompiledGroups(NamedTuple):
    """Groups of patches and the filters of each."""

    groups: Array  # (n, m), positions of patches of side `patch`, numbered row by row over the image
    patch: int
    basis: Array  # (n, K, K), eigenvectors of each group in columns, the weakest first
    begins: Array  # (n + 1,), where the filters of each group start; they belong to its last eigenvectors
    filters: Array  # (begins[n], p^2, p^2)


def learn_filters(image: Tensor, groups: Tensor, patch: int, threshold: float) -> CompiledGroups:
    """The filters of groups (n, m) of an image (H, W, K) with unit noise; components with less energy are dropped."""
    bands = image.shape[2]
    values, places = image.flatten(1).numpy(), groups.contiguous().numpy()
    basis = np.zeros((len(places), bands, bands), values.dtype)
    count = np.zeros(len(places), np.int64)
    share_out(_bases, len(places), 32 * SMALL, values, places, patch, threshold, basis, count)
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(count)])
    filters = np.empty((begins[-1], patch**2, patch**2), values.dtype)
    share_out(_filters, len(places), 32 * SMALL, values, places, patch, basis, begins, filters)
    return CompiledGroups(places, patch, basis, begins, filters)


def apply_filters(image: Tensor, compiled: CompiledGroups) -> Tensor:
    """Filter all patches of the groups and sum them where they came from, (H, W, K)."""
    height, width, bands = image.shape
    groups, patch = compiled.groups, compiled.patch
    columns = width - patch + 1
    # the number of parts is independent of that of threads: each sums into its own rows, which are added up in order
    parts = min(_PARTS, len(groups))
    bounds = np.array([len(groups) * k // parts for k in range(parts + 1)])
    rows = [groups[start:stop] // columns for start, stop in itertools.pairwise(bounds)]
    first = np.array([r.min() for r in rows])
    last = np.array([r.max() + patch for r in rows])
    values = image.flatten(1).numpy()
    total = np.zeros((parts, int((last - first).max()), width * bands), values.dtype)
    share_out(_filtered, parts, 32 * SMALL, values, *compiled, bounds, first, total)
    summed = torch.zeros(height, width * bands, dtype=image.dtype)
    for part in range(parts):
        summed[first[part] : last[part]] += torch.from_numpy(total[part, : last[part] - first[part]])
    return summed.view(height, width, bands)


@jit
def _gather(image: Array, places: Array, patch: int, x: Array, mean: Array) -> None:
    """Write the patches of a group minus their mean to x (m p^2, K), and the mean to mean (p, p K)."""
    m, side = places.size, mean.shape[1]
    bands = side // patch
    columns = image.shape[1] // bands - patch + 1
    lines = x.reshape(m * patch, side)  # the same memory as lines of patches
    zero, share = x.dtype.type(0), x.dtype.type(1 / m)
    for i in range(patch):
        for j in range(side):
            mean[i, j] = zero
    for a in range(m):
        top, left = places[a] // columns, places[a] % columns * bands
        for i in range(patch):
            source, line, average = image[top + i, left : left + side], lines[a * patch + i], mean[i]
            for j in range(side):
                line[j] = source[j]
                average[j] += source[j]
    for i in range(patch):
        for j in range(side):
            mean[i, j] *= share
    for a in range(m):
        for i in range(patch):
            line, average = lines[a * patch + i], mean[i]
            for j in range(side):
                line[j] -= average[j]


@jit
def _multiply(x: Array, matrix: Array, out: Array) -> None:
    """out = x matrix, a block of rows at a time."""
    rows = max(1, BLAS_ALONE // matrix.size)
    for top in range(0, len(x), rows):
        np.dot(x[top : top + rows], matrix, out[top : top + rows])


@jit
def _largest_row_sum(matrix: Array) -> float:
    """max_i sum_j |a_ij|, an upper bound on every eigenvalue (Gershgorin)."""
    largest = 0.0
    for i in range(matrix.shape[0]):
        total = 0.0
        for j in range(matrix.shape[1]):
            total += abs(matrix[i, j])
        largest = max(largest, total)
    return largest


@jit
def _bases(
    image: Array, groups: Array, patch: int, threshold: float, basis: Array, count: Array, start: int, stop: int
) -> None:
    m, bands = groups.shape[1], basis.shape[1]
    x, mean = np.empty((m * patch * patch, bands), image.dtype), np.empty((patch, patch * bands), image.dtype)
    covariance, part = np.empty((bands, bands), image.dtype), np.empty((bands, bands), image.dtype)
    rows = max(1, BLAS_ALONE // (bands * bands))
    for g in range(start, stop):
        _gather(image, groups[g], patch, x, mean)
        covariance[:] = 0
        for top in range(0, len(x), rows):
            piece = x[top : top + rows]
            np.dot(piece.T, piece, part)
            covariance += part
        if _largest_row_sum(covariance) > threshold:
            energies, vectors = np.linalg.eigh(covariance)
            for k in range(bands):
                count[g] += energies[k] > threshold
                for j in range(bands):
                    basis[g, k, j] = vectors[k, j]


@jit
def _filters(
    image: Array, groups: Array, patch: int, basis: Array, begins: Array, filters: Array, start: int, stop: int
) -> None:
    m, bands, pixels = groups.shape[1], basis.shape[1], patch * patch
    x, mean = np.empty((m * pixels, bands), image.dtype), np.empty((patch, patch * bands), image.dtype)
    rotated, plane = np.empty(m * pixels * bands, image.dtype), np.empty((m, pixels), image.dtype)
    low, high = np.float64(min(m - 1, pixels)), np.float64(max(m - 1, pixels))
    edge = (np.sqrt(low) + np.sqrt(high)) ** 2
    for g in range(start, stop):
        kept = begins[g + 1] - begins[g]
        if kept == 0:
            continue
        _gather(image, groups[g], patch, x, mean)
        components = rotated[: m * pixels * kept].reshape(m * pixels, kept)
        _multiply(x, basis[g][:, bands - kept :].copy(), components)
        for k in range(kept):
            for a in range(m):
                for j in range(pixels):
                    plane[a, j] = components[a * pixels + j, k]
            values, vectors = np.linalg.eigh(np.dot(plane.T, plane))
            scaled = np.zeros_like(vectors)
            for n in range(pixels):
                s = np.float64(values[n])
                if s > edge:  # `cassi.priors.nonlocal_lowrank.singular_value_gain`
                    gain = np.sqrt(max((s - low - high) ** 2 - 4 * low * high, 0.0)) / s
                    for i in range(pixels):
                        scaled[i, n] = vectors[i, n] * image.dtype.type(gain)
            np.dot(scaled, vectors.T, filters[begins[g] + k])


@jit
def _filtered(
    image: Array, groups: Array, patch: int, basis: Array, begins: Array, filters: Array, bounds: Array, first: Array,
    total: Array, start: int, stop: int
) -> None:  # fmt: skip
    m, bands, pixels = groups.shape[1], basis.shape[1], patch * patch
    side = patch * bands
    columns = image.shape[1] // bands - patch + 1
    x, mean = np.empty((m * pixels, bands), image.dtype), np.empty((patch, side), image.dtype)
    lines = x.reshape(m * patch, side)
    rotated = np.empty(m * pixels * bands, image.dtype)
    plane, shrunk = np.empty((m, pixels), image.dtype), np.empty((m, pixels), image.dtype)
    for part in range(start, stop):
        for g in range(bounds[part], bounds[part + 1]):
            _gather(image, groups[g], patch, x, mean)
            kept = begins[g + 1] - begins[g]
            if kept == 0:
                x[:] = 0
            else:
                vectors = basis[g][:, bands - kept :].copy()
                components = rotated[: m * pixels * kept].reshape(m * pixels, kept)
                _multiply(x, vectors, components)
                for k in range(kept):
                    for a in range(m):
                        for j in range(pixels):
                            plane[a, j] = components[a * pixels + j, k]
                    np.dot(plane, filters[begins[g] + k], shrunk)
                    for a in range(m):
                        for j in range(pixels):
                            components[a * pixels + j, k] = shrunk[a, j]
                _multiply(components, vectors.T.copy(), x)
            for a in range(m):
                top, left = groups[g, a] // columns, groups[g, a] % columns
                for i in range(patch):
                    target = total[part, top + i - first[part], left * bands : left * bands + side]
                    line, average = lines[a * patch + i], mean[i]
                    for j in range(side):
                        target[j] += line[j] + average[j]

"""Groups of similar patches and their filters on the CPU, see `cassi.priors.nonlocal_lowrank.GroupFilters`."""

import itertools
from typing import NamedTuple

import numpy as np
from torch import Tensor

from cassi.kernels.jit import Array, jit
from cassi.kernels.threads import SMALL, share_out

BLAS_ALONE = 1 << 18  # multiplications per matrix product up to which OpenBLAS stays in the calling thread
_PARTS = 16  # into which the groups of patches are divided


class CompiledGroups(NamedTuple):
    """Groups of patches, the filters of each, and the buffers of their application.

    The groups are divided into parts, whose number does not depend on the threads: each sums into its own rows,
    which are added up in order.
    """

    groups: Array  # (n, m), positions of patches of side `patch`, numbered row by row over the image
    patch: int
    basis: Array  # (n, K, K), eigenvectors of each group in columns, the weakest first
    begins: Array  # (n + 1,), where the filters of each group start; they belong to its last eigenvectors
    filters: Array  # (begins[n], p^2, p^2)
    bounds: Array  # (parts + 1,), the groups of each part
    rows: Array  # (parts, 2), the first row of its patches, and the one after the last
    image: Array  # (H, W, K)
    total: Array  # (parts, rows, W, K)


def learn_filters(image: Tensor, groups: Tensor, patch: int, threshold: float) -> CompiledGroups:
    """The filters of groups (n, m) of an image (H, W, K) with unit noise; components with less energy are dropped."""
    height, width, bands = image.shape
    values, places = image.numpy(), groups.contiguous().numpy()
    basis = np.zeros((len(places), bands, bands), values.dtype)
    count = np.zeros(len(places), np.int64)
    lines = values.reshape(height, width * bands)
    share_out(_bases, len(places), 32 * SMALL, lines, places, patch, threshold, basis, count)
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(count)])
    filters = np.empty((begins[-1], patch**2, patch**2), values.dtype)
    share_out(_filters, len(places), 32 * SMALL, lines, places, patch, basis, begins, filters)
    parts = min(_PARTS, len(places))
    bounds = np.array([len(places) * k // parts for k in range(parts + 1)])
    first = [places[start:stop] // (width - patch + 1) for start, stop in itertools.pairwise(bounds)]
    rows = np.array([(r.min(), r.max() + patch) for r in first])
    total = np.empty((parts, np.ptp(rows, axis=1).max(), width, bands), values.dtype)
    return CompiledGroups(places, patch, basis, begins, filters, bounds, rows, np.empty_like(values), total)


def apply_filters(z: Tensor, compiled: CompiledGroups, level: Tensor, share: Tensor) -> None:
    """Filter all patches of the groups in images z (K, H, W), in units of `level` (K,), and put them back.

    Each pixel becomes `share` (H, W) times the sum of all patches that hold it.
    """
    images, height = z.numpy(), z.shape[1]
    unit = level.numpy()
    share_out(_channels_last, height, 4 * z.numel(), images, unit, compiled.image)
    share_out(_filtered, len(compiled.rows), 32 * SMALL, *compiled)
    share_out(_collected, height, 4 * z.numel(), compiled.total, compiled.rows, unit, share.numpy(), images)


@jit
def _channels_last(images: Array, unit: Array, out: Array, start: int, stop: int) -> None:
    bands, _, width = images.shape
    for i in range(start, stop):
        for k in range(bands):
            scale = images.dtype.type(1) / unit[k]
            for j in range(width):
                out[i, j, k] = images[k, i, j] * scale


@jit
def _collected(total: Array, rows: Array, unit: Array, share: Array, images: Array, start: int, stop: int) -> None:
    bands, _, width = images.shape
    line = np.empty((width, bands), images.dtype)
    for i in range(start, stop):
        line[:] = 0
        for part in range(len(rows)):
            if rows[part, 0] <= i < rows[part, 1]:
                line += total[part, i - rows[part, 0]]
        for k in range(bands):
            for j in range(width):
                images[k, i, j] = line[j, k] * (share[i, j] * unit[k])


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
def _times(x: Array, matrix: Array, out: Array) -> None:
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
        _times(x, basis[g][:, bands - kept :].copy(), components)
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
def _contract(flat: Array, corner: int, row: int, vector: Array, out: Array) -> None:
    """out = sum_k vector_k x_k over a window of an image x (H, W, K), which is a line of numbers, `row` for each row of
    pixels; the window begins at its number `corner`."""
    K = np.uint64(vector.size)
    for i in range(np.uint64(out.shape[0])):
        start = np.uint64(corner) + i * np.uint64(row)
        for j in range(np.uint64(out.shape[1])):
            total = flat.dtype.type(0)
            for k in range(K):
                total += flat[start + j * K + k] * vector[k]
            out[i, j] = total


@jit
def _expand(values: Array, corner: int, row: int, vector: Array, flat: Array) -> None:
    """x_k += vector_k values, the transpose of `_contract`."""
    K = np.uint64(vector.size)
    for i in range(np.uint64(values.shape[0])):
        start = np.uint64(corner) + i * np.uint64(row)
        for j in range(np.uint64(values.shape[1])):
            for k in range(K):
                flat[start + j * K + k] += values[i, j] * vector[k]


@jit
def _filter_window(window: Array, places: Array, kernel: Array, x: Array, mean: Array, filtered: Array) -> None:
    """Replace a window by the sum of its patches, minus their mean, filtered and put back.

    `places` are of their pixels in the window, (m p^2,); x, mean and filtered are work space.
    """
    m, pixels = x.shape
    values, line, result = window.reshape(window.size), x.reshape(x.size), filtered.reshape(x.size)
    for n in range(np.uint64(x.size)):
        line[n] = values[places[n]]
    mean[:] = window.dtype.type(0)
    for a in range(m):
        for n in range(pixels):
            mean[n] += x[a, n]
    mean *= window.dtype.type(1 / m)
    for a in range(m):
        for n in range(pixels):
            x[a, n] -= mean[n]
    np.dot(x, kernel, filtered)
    values[:] = window.dtype.type(0)
    for n in range(np.uint64(x.size)):
        values[places[n]] += result[n]


@jit
def _filtered(
    groups: Array, patch: int, basis: Array, begins: Array, filters: Array, bounds: Array, rows: Array, image: Array,
    total: Array, start: int, stop: int
) -> None:  # fmt: skip
    """Of each part: the sum of mean + (patch - mean) filtered over its patches.

    Half of the groups or more hold nothing but their mean. The patches of a group overlap, so a component is computed
    in the window around them: some 230 pixels (at most 625) in place of 800 in 32 patches. Unsigned indices need no
    test for negative ones, which would take as long as the short loops over a line.
    """
    height, width, bands = image.shape
    m, pixels, side = groups.shape[1], patch * patch, patch * bands
    flat, zero, share = image.reshape(image.size), image.dtype.type(0), image.dtype.type(1 / m)
    mean, middle = np.empty(patch * side, image.dtype), np.empty(pixels, image.dtype)
    plane, shrunk = np.empty((m, pixels), image.dtype), np.empty((m, pixels), image.dtype)
    room, vector = np.empty(height * width, image.dtype), np.empty(bands, image.dtype)
    tops, lefts, places = np.empty(m, np.int64), np.empty(m, np.int64), np.empty(m * pixels, np.uint64)
    M, P, S = np.uint64(m), np.uint64(patch), np.uint64(side)
    K, columns, row = np.uint64(bands), np.uint64(width - patch + 1), np.uint64(width * bands)
    for part in range(start, stop):
        out, first = total[part].reshape(total[part].size), np.uint64(rows[part, 0]) * row
        out[: (rows[part, 1] - rows[part, 0]) * width * bands] = zero
        for g in range(bounds[part], bounds[part + 1]):
            members = groups[g]
            mean[:] = zero
            for a in range(M):
                corner = np.uint64(members[a]) // columns * row + np.uint64(members[a]) % columns * K
                for i in range(P):
                    source, average = corner + i * row, i * S
                    for j in range(S):
                        mean[average + j] += flat[source + j]
            mean *= share
            for a in range(M):
                corner = np.uint64(members[a]) // columns * row + np.uint64(members[a]) % columns * K - first
                for i in range(P):
                    target, average = corner + i * row, i * S
                    for j in range(S):
                        out[target + j] += mean[average + j]
            kept = begins[g + 1] - begins[g]
            if kept == 0:
                continue
            for a in range(m):
                tops[a], lefts[a] = members[a] // (width - patch + 1), members[a] % (width - patch + 1)
            top, left = tops.min(), lefts.min()
            tops -= top
            lefts -= left
            high, wide = tops.max() + patch, lefts.max() + patch
            window = room[: high * wide].reshape(high, wide)
            corner, n = (top * width + left) * bands, np.uint64(0)
            for a in range(m):
                for i in range(patch):
                    for j in range(patch):
                        places[n] = (tops[a] + i) * wide + lefts[a] + j
                        n += np.uint64(1)
            for k in range(kept):
                for b in range(bands):
                    vector[b] = basis[g, b, bands - kept + k]
                _contract(flat, corner, width * bands, vector, window)
                _filter_window(window, places, filters[begins[g] + k], plane, middle, shrunk)
                _expand(window, corner - rows[part, 0] * width * bands, width * bands, vector, out)

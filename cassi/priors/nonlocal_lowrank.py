"""Non-local low-rank denoising: an image repeats itself, and the patches that repeat span few dimensions.

For every reference patch the most similar patches around it are stacked into a group. Their mean is kept; what is left
is rotated by its own K x K covariance (a local spectral basis) and, component by component, cut down to the singular
values that stand out of the noise. Every patch goes back to its place; overlapping estimates are averaged.

    group of m patches, component k:   X_k (m, p^2) = U diag(s) V^T   ->   U diag(eta(s)) V^T

eta is the shrinkage that loses least to white noise of known level (Gavish & Donoho, IEEE Trans. Inf. Theory 63
(2017), eq. 2): no threshold has to be chosen. Groups of similar patches as low-rank matrices: Dong, Shi & Li, IEEE
TIP 22 (2013); Gu et al., CVPR 2014.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels.covariance import covariance_sum, pixel_mean
from cassi.kernels.cpu_lowrank import lowrank_groups
from cassi.kernels.dispatch import kernels
from cassi.kernels.patches import aggregate_patches, extract_patches
from cassi.kernels.threads import side_by_side

_NUM_FEATURES = 16  # numbers that stand for a patch in the search: its strongest principal components
_CHUNK = 2**22  # elements of the groups that are worked on at a time


def nonlocal_lowrank(
    z: Tensor,
    sigma: float | Tensor,
    *,
    patch: int = 5,
    stride: int = 4,
    window: int = 10,
    group: int = 32,
    groups: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Denoise a stack of images that share their structure, such as the coefficient images of a subspace.

    The images are divided by sigma first, so that the noise is white and 1 in all of them. Matching looks at all K
    images together. Memory: with the compiled kernel (CPU) some ten times z, else three times p^2 z.

    Args:
        z: (K, H, W), floating point; K = 1 is a grey image.
        sigma: standard deviation of the noise, one number or one for each image (K,), > 0; or 0, which returns z.
        patch: side of a patch p [pixel]; 7 suits a single image better, where a patch of 5 holds few numbers.
        stride: distance of reference patches [pixel], 1 to patch.
        window: similar patches are looked for up to this far from the reference, in rows and columns [pixel].
        group: patches in a group m; fewer where a corner has not as many candidates.
        groups: from an earlier call on images of the same size: leaves out the search, a fifth of the time.

    Returns:
        The denoised images like z, and the groups (num_references, m) to hand to the next call.

    Raises:
        ValueError: z not (K, H, W) or smaller than a patch; sigma negative, of another length, or 0 for some images
            only; stride not in 1..patch, window or group below 1; groups that do not fit the image.
        FloatingPointError: NaN or Inf in z.

    Example:
        >>> x = torch.ones(1, 24, 24)
        >>> noisy = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        >>> u, groups = nonlocal_lowrank(noisy, 0.1)
        >>> bool((u - x).square().mean() < (noisy - x).square().mean() / 20)
        True
    """
    level = _noise_level(z, sigma)
    if stride < 1 or stride > patch or window < 1 or group < 1:
        raise ValueError(
            f"need 1 <= stride <= patch, window >= 1 and group >= 1, got stride {stride}, patch {patch}, "
            f"window {window}, group {group}"
        )
    if not bool(torch.isfinite(z).all()):
        raise FloatingPointError("the images hold NaN or Inf; check the measurement and the mask")
    grid = (z.shape[1] - patch + 1, z.shape[2] - patch + 1)
    if min(grid) < 1:
        raise ValueError(f"images of {tuple(z.shape[1:])} are smaller than a patch of {patch} x {patch} pixels")
    if groups is not None and level is not None and not _fit(groups, grid, stride):
        raise ValueError(
            f"groups of shape {tuple(groups.shape)} are not of an image of {tuple(z.shape[1:])} with stride {stride}"
        )
    if level is None:
        return z.clone(), torch.zeros(0, 1, dtype=torch.long, device=z.device) if groups is None else groups
    with torch.no_grad():
        if groups is None:
            groups = _match(_features(z / level, patch), stride, window, group)
        if not z.is_cuda and kernels(z) is not None:
            image = (z / level).permute(1, 2, 0).contiguous()
            summed, covered = lowrank_groups(image, groups, patch)
            return (summed / covered[:, :, None]).permute(2, 0, 1).contiguous().mul_(level), groups
        # patches lie as rows, so that a group gathers whole rows
        patches = extract_patches(z / level, patch)
        rows = patches.view(-1, grid[0] * grid[1]).t().contiguous()
        total, count = torch.zeros_like(rows), rows.new_zeros(rows.shape[0])
        chunk = max(1, _CHUNK // (groups.shape[1] * rows.shape[1]))
        for members in torch.split(groups, chunk):
            indices = members.reshape(-1)
            x = rows.index_select(0, indices).view(*members.shape, z.shape[0], patch**2)
            total.index_add_(0, indices, _shrink_groups(x).view(len(indices), -1))
            count.index_add_(0, indices, count.new_ones(len(indices)))
        summed = aggregate_patches(total.t().reshape(patches.shape), (z.shape[1], z.shape[2]))
        covered = aggregate_patches(count.view(1, 1, *grid).expand(patch, patch, -1, -1), (z.shape[1], z.shape[2]))
        return summed.div_(covered).mul_(level), groups


class NonlocalDenoiser:
    """`f(z, k) -> z` for the solvers: `nonlocal_lowrank` with its groups kept for some iterations.

    One denoiser serves one run of a solver: make a new one for each.

    Args:
        sigma: noise level, in units of z, a number or one for each image (K,).
        refresh: look for similar patches anew every so many calls.
        patch, stride: see `nonlocal_lowrank`.

    Raises:
        ValueError: refresh below 1.
    """

    def __init__(self, sigma: float | Tensor, *, refresh: int = 8, patch: int = 5, stride: int = 4) -> None:
        if refresh < 1:
            raise ValueError(f"refresh must be at least 1, got {refresh}")
        self._sigma, self._refresh, self._patch, self._stride = sigma, refresh, patch, stride
        self._groups: list[Tensor | None] = []

    def __call__(self, z: Tensor, k: int) -> Tensor:
        """Denoise z (..., K, H, W), each stack of a batch with groups of its own."""
        stacks = z.reshape(-1, *z.shape[-3:])
        if k % self._refresh == 0 or len(self._groups) != len(stacks):
            self._groups = [None] * len(stacks)
        for b, stack in enumerate(stacks):
            stacks[b], self._groups[b] = nonlocal_lowrank(
                stack, self._sigma, patch=self._patch, stride=self._stride, groups=self._groups[b]
            )
        return stacks.view_as(z)


def singular_value_gain(s: Tensor, rows: int, columns: int) -> Tensor:
    """eta(s) / s of the shrinkage that minimises the expected squared error, for white noise of standard deviation 1.

        eta(s) = sqrt((s^2 - a - b)^2 - 4 a b) / s   where s > sqrt(a) + sqrt(b), else 0

    for a matrix of a x b numbers: Gavish & Donoho (2017), eq. 2, in units of the noise. A signal without noise would
    have the singular value eta: it also undoes the growth that noise causes.

    Args:
        s: squared singular values s^2 (eigenvalues of the Gram matrix), any shape.
        rows, columns: a and b.

    Returns:
        Gains in [0, 1], like s.

    Example:
        >>> singular_value_gain(torch.tensor([3.9, 4.0, 400.0]), 1, 1)
        tensor([0.0000, 0.0000, 0.9950])
    """
    a, b = min(rows, columns), max(rows, columns)
    edge = (math.sqrt(a) + math.sqrt(b)) ** 2
    # (s - a - b)^2 - 4 a b in two factors, whose squares cannot overflow
    eta = (s - edge).clamp(min=0).sqrt() * (s - (math.sqrt(b) - math.sqrt(a)) ** 2).clamp(min=0).sqrt()
    return torch.where(s > edge, eta / s.clamp(min=edge), 0)


def _noise_level(z: Tensor, sigma: float | Tensor) -> Tensor | None:
    """sigma as (K, 1, 1), or None where it is 0."""
    if z.ndim != 3 or not z.is_floating_point():
        raise ValueError(f"z must be (K, H, W), floating point, got {tuple(z.shape)} of {z.dtype}; loop over a batch")
    level = torch.as_tensor(sigma, dtype=z.dtype, device=z.device)
    if level.ndim > 1 or level.numel() not in (1, z.shape[0]):
        raise ValueError(f"sigma must be one number or {z.shape[0]}, one for each image, got {tuple(level.shape)}")
    if bool((level == 0).all()):
        return None
    if not bool((level > 0).all()):
        raise ValueError(f"sigma must be positive (or 0 for all images), got {level.tolist()}")
    return level.reshape(-1, 1, 1)


def _fit(groups: Tensor, grid: tuple[int, int], stride: int) -> bool:
    """Whether these can be groups on a grid of places: one for each reference patch, which is in it."""
    rows, columns = (torch.tensor(sorted({*range(0, n, stride), n - 1}), device=groups.device) for n in grid)
    references = (rows[:, None] * grid[1] + columns).flatten()
    return (
        groups.ndim == 2
        and groups.dtype == torch.long
        and len(groups) == len(references)
        and bool(((groups >= 0) & (groups < grid[0] * grid[1])).all())
        and bool((groups == references[:, None]).any(1).all())
    )


def _features(z: Tensor, patch: int) -> Tensor:
    """The strongest principal components of all patches, (num_features, n_h, n_w), of images (K, H, W).

    Distances between them are distances between patches without most of the noise, at a fraction of the work.
    """
    patches = z.unfold(1, patch, 1).unfold(2, patch, 1)  # (K, n_h, n_w, p, p), a view
    count = patches.shape[1] * patches.shape[2]
    some = torch.arange(0, count, max(1, count // 4096), device=z.device)
    sample = patches[:, some // patches.shape[2], some % patches.shape[2]].permute(0, 2, 3, 1).flatten(0, 2)
    sample = sample[None, :, :, None]
    covariance = covariance_sum(sample, mean=pixel_mean(sample))
    if float(covariance.trace()) <= 1e-10 * float(sample.square().sum()):  # rounding; all patches are alike
        return z.new_zeros(1, patches.shape[1], patches.shape[2])
    _, vectors = _eigh(covariance[None])
    kernels = vectors[0, :, -_NUM_FEATURES:].t().reshape(-1, z.shape[0], patch, patch)
    return F.conv2d(z[None], kernels)[0]


def _match(features: Tensor, stride: int, window: int, group: int) -> Tensor:
    """For each reference patch the positions of the `group` nearest ones in its window, itself among them."""
    _, n_h, n_w = features.shape
    references = [torch.tensor(sorted({*range(0, n, stride), n - 1}), device=features.device) for n in (n_h, n_w)]
    reference = features[:, references[0]][:, :, references[1], None]
    # beyond the border nothing is similar
    padded = F.pad(features, (window, window, window, window), value=math.inf)
    side = 2 * window + 1
    distance = features.new_empty(len(references[0]), len(references[1]), side * side)
    for i in range(side):
        beside = padded[:, references[0] + i].unfold(2, side, 1)[:, :, references[1]]
        distance[:, :, i * side : (i + 1) * side] = beside.sub_(reference).square_().sum(0)
    distance[:, :, side * side // 2] = -1  # the reference itself comes first, also among equals
    available = min(n_h, window + 1) * min(n_w, window + 1)  # in a corner
    nearest = distance.topk(min(group, available), largest=False, sorted=False).indices
    row = references[0][:, None, None] + nearest // side - window
    column = references[1][:, None] + nearest % side - window
    return (row * n_w + column).flatten(0, 1)


def _shrink_groups(x: Tensor) -> Tensor:
    """Denoise groups (n, m, K, p^2) with white noise of standard deviation 1."""
    n, m, bands, pixels = x.shape
    x = x.transpose(1, 2).contiguous()
    mean = x.mean(2, keepdim=True)
    x = x.sub_(mean).view(n, bands, m * pixels)
    if bands > 1:
        basis = _eigh(torch.bmm(x, x.mT))[1]
        x = torch.bmm(basis.mT, x)
    x = x.view(n * bands, m, pixels)
    # of most components noise alone is left; without this test their decomposition would be most of the work
    energy, expected = x.square().sum((1, 2)), (m - 1) * pixels
    alive = (energy > expected + 4 * math.sqrt(2 * expected)).nonzero()[:, 0]
    signal = x[alive]
    small_rows = m <= pixels
    values, vectors = _eigh(torch.bmm(signal, signal.mT) if small_rows else torch.bmm(signal.mT, signal))
    gain = singular_value_gain(values, m - 1, pixels)
    projection = torch.bmm(vectors * gain[:, None, :], vectors.mT)
    kept = torch.zeros_like(x)
    kept[alive] = torch.bmm(projection, signal) if small_rows else torch.bmm(signal, projection)
    x = kept.view(n, bands, m * pixels)
    if bands > 1:
        x = torch.bmm(basis, x)
    return (x.view(n, bands, m, pixels) + mean).transpose(1, 2).contiguous()


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigendecomposition of many small matrices, on the CPU with one thread to each part of the batch.

    Left to itself LAPACK puts all threads on one small matrix, and they wait for each other a hundred times longer
    than they work.
    """
    if matrices.is_cuda or len(matrices) == 0:
        values, vectors = torch.linalg.eigh(matrices)
        return values, vectors
    pieces = matrices.chunk(torch.get_num_threads()) if len(matrices) >= 64 else [matrices]
    values, vectors = zip(*side_by_side(torch.linalg.eigh, pieces), strict=True)
    return torch.cat(values), torch.cat(vectors)

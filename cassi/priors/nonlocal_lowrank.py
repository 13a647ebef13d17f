"""Non-local low-rank denoising: an image repeats itself, and similar patches span few dimensions.

For every reference patch the most similar patches around it are stacked into a group. Their mean is kept; the
differences from it are rotated by their K x K covariance (a local spectral basis), and in each component the singular
values are shrunk towards those above the noise. Every patch returns to its position; overlapping ones are averaged.

    group of m patches, component k:   X_k (m, p^2) = U diag(s) V^T   ->   U diag(eta(s)) V^T

eta is the optimal shrinkage for white noise of known level (Gavish & Donoho, IEEE Trans. Inf. Theory 63 (2017), eq. 2),
so that no threshold has to be chosen. Groups of similar patches as low-rank matrices: Dong, Shi & Li, IEEE TIP 22
(2013); Gu et al., CVPR 2014.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels import cpu
from cassi.kernels.covariance import covariance_sum, pixel_mean
from cassi.kernels.cpu_lowrank import CompiledGroups, apply_filters, learn_filters
from cassi.kernels.dispatch import kernels
from cassi.kernels.patches import aggregate_patches
from cassi.kernels.threads import side_by_side

_NUM_FEATURES = 16  # principal components that represent a patch in the search
WINDOW = 10  # greatest distance of a similar patch from the reference, in rows and columns [pixel]
GROUP = 32  # patches per group; fewer if a corner has fewer candidates
_NOT_FINITE = "the images hold NaN or Inf, or the noise is far too small; check the measurement and the mask"
_CHUNK = 2**22  # elements of the groups processed at a time
_CHUNK_ON_DEVICE = 2**25  # the same on a GPU, for few launches; four times this many are in memory


class NonlocalDenoiser:
    """`f(z, k) -> z` for the solvers: denoise images that share their structure, such as coefficients of a subspace.

    The images are divided by sigma first, so that the noise is white with variance 1 in all of them; patches are
    matched in all images together. The first call chooses the groups and their filters; from then on this is a linear
    map, which costs only products. Make a new one for each run of a solver. It overwrites its argument. Memory:
    about ten times z with the compiled kernel (CPU), else three times p^2 z.

    Args:
        sigma: standard deviation of the noise in units of z, one number or one per image (K,), > 0.
        patch: side of a patch p [pixel]; 7 suits a single image better, in which a patch of 5 holds few values.
        stride: distance between reference patches [pixel], 1 to patch.

    Raises:
        ValueError: sigma is not positive (on a GPU, at the first call), or stride is not in 1..patch.

    Example:
        >>> x = torch.ones(1, 24, 24)
        >>> noisy = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        >>> u = NonlocalDenoiser(0.1)(noisy.clone(), 0)
        >>> bool((u - x).square().mean() < (noisy - x).square().mean() / 20)
        True
    """

    def __init__(self, sigma: float | Tensor, *, patch: int = 5, stride: int = 4) -> None:
        if stride < 1 or stride > patch:
            raise ValueError(f"need 1 <= stride <= patch, got stride {stride}, patch {patch}")
        self._sigma = torch.as_tensor(sigma).flatten()
        if self._sigma.is_cpu and not bool((self._sigma > 0).all()):  # on a GPU checked later, at the next transfer
            raise ValueError(f"sigma must be positive, got {self._sigma.tolist()}")
        self._patch, self._stride = patch, stride
        self._filters: GroupFilters | None = None

    def __call__(self, z: Tensor, k: int) -> Tensor:
        """Denoise z (..., K, H, W), each stack of a batch with its own groups, all in one batch of products.

        Raises:
            ValueError: z has the wrong rank or type, another K than sigma, or is smaller than a patch.
            FloatingPointError: NaN or Inf in z, or products that overflow in units of sigma.
        """
        if z.ndim < 3 or not z.is_floating_point() or min(z.shape[-2:]) < self._patch:
            raise ValueError(
                f"z must be (..., K, H, W), floating point, H and W at least {self._patch}, "
                f"got {tuple(z.shape)} of {z.dtype}"
            )
        if len(self._sigma) not in (1, z.shape[-3]):
            raise ValueError(f"sigma must be one number or {z.shape[-3]}, one per image, got {len(self._sigma)}")
        stacks = z.reshape(-1, *z.shape[-3:])
        N, K, H, W = stacks.shape
        with torch.no_grad():
            high = stacks.transpose(0, 1).reshape(K, N * H, W)  # one above the other; a view of a single stack
            if self._filters is None or self._filters.shape != high.shape:
                level = self._sigma.to(z).expand(K).contiguous().view(-1, 1, 1)
                # on a GPU `_decompose` checks, at its transfer; no product of a group exceeds its patches' energy
                if z.is_cpu and not bool((GROUP * (stacks / level).square().sum()).isfinite()):
                    raise FloatingPointError(_NOT_FINITE)
                positions = H * (W - self._patch + 1)  # from one stack to the next
                groups = [_match(_features(stack / level, self._patch), self._stride) for stack in stacks]
                if N > 1:
                    groups = [torch.cat([group.add_(n * positions) for n, group in enumerate(groups)])]
                self._filters = GroupFilters(high, level, groups[0], self._patch)
            self._filters.apply_(high)
        return z if N == 1 and z.is_contiguous() else high.view(K, N, H, W).transpose(0, 1).reshape(z.shape)


class GroupFilters:
    """The filters of all groups of similar patches, as a linear map of images (K, H, W).

    In a group with basis Q (K, K), component k of Q^T x has m patches X_k (m, p^2), minus their mean, and

        X_k -> X_k P_k,   P_k = V diag(eta(s) / s) V^T,   X_k^T X_k = V diag(s^2) V^T  of the images first given.

    P_k = 0 for components with no more energy than noise, which are most of them.
    """

    def __init__(self, z: Tensor, level: Tensor, groups: Tensor, patch: int) -> None:
        bands, height, width = self.shape = z.shape
        self._level, self._patch = level, patch
        grid = (height - patch + 1, width - patch + 1)
        count = z.new_zeros(grid[0] * grid[1]).index_add_(0, groups.flatten(), z.new_ones(groups.numel()))
        self._share = 1 / aggregate_patches(count.view(1, 1, *grid).expand(patch, patch, -1, -1), (height, width))
        expected = (groups.shape[1] - 1) * patch**2
        threshold = expected + 4 * math.sqrt(2 * expected)  # energy up to which a component counts as noise
        self._compiled: CompiledGroups | None = None
        self._parts: list[_Part] = []
        if kernels(z) is cpu:
            self._compiled = learn_filters((z / level).permute(1, 2, 0).contiguous(), groups, patch, threshold)
            return
        size = (_CHUNK if z.is_cpu else _CHUNK_ON_DEVICE) // (groups.shape[1] * bands * patch**2)
        self._scale, self._inverse = level * self._share, level.reciprocal().flatten()
        for members in torch.split(groups, max(1, size)):
            x, _ = self._gather(z, members)
            self._parts.append(_decompose(x, members, patch, grid[0] * grid[1], threshold, level.min()))

    def _gather(self, z: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        fast = kernels(z)
        gather = _gather_groups if fast is None or fast is cpu else fast.gather_groups
        x, mean = gather(z, self._inverse, groups, self._patch)
        return x, mean

    def apply_(self, z: Tensor) -> None:
        """Denoise z, of the size for which the filters were made, in place."""
        if self._compiled is not None:
            apply_filters(z, self._compiled, self._level.flatten(), self._share)
            return
        out, fast = z if len(self._parts) == 1 else torch.empty_like(z), kernels(z)
        for number, part in enumerate(self._parts):
            n, m = part.groups.shape
            x, mean = self._gather(z, part.groups)
            rotated = torch.bmm(part.basis.mT, x).view(-1, m, self._patch**2)
            torch.bmm(rotated.index_select(0, part.signal), part.projections, out=part.filtered[:-1])
            y = torch.bmm(part.filtered.index_select(0, part.source).view(n, len(z), -1).mT, part.basis.mT)
            if fast is None:
                _put_back(y, mean, part.groups, self._patch, self._scale, out, number > 0)
            else:
                fast.put_back(y, mean, part.order, part.start, self._patch, self._scale, out, number > 0)
        if out is not z:
            z.copy_(out)


class _Part(NamedTuple):
    """Some of the groups and their filters, for one batch of products."""

    groups: Tensor  # (n, m)
    basis: Tensor  # Q (n, K, K), eigenvectors in columns
    signal: Tensor  # numbers g K + k of the components above the noise (A,)
    projections: Tensor  # P of these, (A, p^2, p^2)
    source: Tensor  # (n K,), the number of each component among those, or A for noise
    filtered: Tensor  # (A + 1, m, p^2), buffer for their filtered patches; the last stays 0, for components of noise
    order: Tensor  # numbers of the patches of the groups, sorted by position
    start: Tensor  # where each position starts in that list


def _decompose(x: Tensor, groups: Tensor, patch: int, positions: int, threshold: float, sigma: Tensor) -> _Part:
    """The filters of groups x (n, K, m p^2), with mean 0 and in units of the noise; `sigma` is only checked."""
    m = groups.shape[1]
    values, basis = _eigh(torch.bmm(x, x.mT))
    signal = (values > threshold).flatten()
    sums = [signal.sum(dtype=torch.float64), values.sum(dtype=torch.float64), sigma.double()]
    total, energy, smallest = torch.stack(sums).tolist()
    if not smallest > 0:
        raise ValueError(f"sigma must be positive, got {smallest}")
    if not math.isfinite(energy):
        raise FloatingPointError(_NOT_FINITE)
    count = int(total)
    ranked = signal.sort(stable=True, descending=True).indices  # needs no second transfer
    rotated = torch.bmm(basis.mT, x).view(-1, m, patch**2)[ranked[:count]]
    squares, vectors = _eigh(torch.bmm(rotated.mT, rotated))
    gain = singular_value_gain(squares, m - 1, patch**2)
    projections = torch.bmm(vectors * gain[:, None, :], vectors.mT)
    source = ranked.argsort().clamp_(max=count)
    sorted_positions, order = groups.flatten().sort(stable=True)
    start = torch.searchsorted(sorted_positions, torch.arange(positions + 1, device=x.device))
    filtered = x.new_zeros(count + 1, m, patch**2)
    return _Part(groups, basis, ranked[:count], projections, source, filtered, order, start)


def _gather_groups(z: Tensor, inverse: Tensor, groups: Tensor, patch: int) -> tuple[Tensor, Tensor]:
    """The patches of groups in units of the noise, minus their mean, (n, K, m p^2); and the mean, (n, p^2, K)."""
    pixels = z.mul(inverse.view(-1, 1, 1)).flatten(1)[:, _pixels(groups, patch, z.shape[2])]
    x = pixels.transpose(0, 1).contiguous()  # (n, K, m, p^2)
    mean = x.mean(2, keepdim=True)
    return x.sub_(mean).flatten(2), mean[:, :, 0].mT.contiguous()


def _put_back(y: Tensor, mean: Tensor, groups: Tensor, patch: int, scale: Tensor, out: Tensor, add: bool) -> None:
    """out = scale times the sum of all patches y (n, m p^2, K) + mean at their positions; y is overwritten."""
    n, m = groups.shape
    y = y.view(n, m, patch**2, -1).add_(mean[:, None])
    summed = y.new_zeros(out[0].numel(), len(out))
    summed.index_add_(0, _pixels(groups, patch, out.shape[2]).flatten(), y.flatten(0, 2))
    value = summed.t().reshape(out.shape).mul_(scale)
    torch.add(out, value, out=out) if add else out.copy_(value)


def _pixels(groups: Tensor, patch: int, width: int) -> Tensor:
    """The pixels of each patch, row by row over the image, (n, m, p^2)."""
    columns = width - patch + 1
    i = torch.arange(patch, device=groups.device)
    return (groups // columns * width + groups % columns).unsqueeze(-1) + (i[:, None] * width + i).flatten()


def singular_value_gain(s: Tensor, rows: int, columns: int) -> Tensor:
    """eta(s) / s of the shrinkage that minimizes the expected squared error, for white noise of standard deviation 1.

        eta(s) = sqrt((s^2 - a - b)^2 - 4 a b) / s   where s > sqrt(a) + sqrt(b), else 0

    for a matrix of a x b numbers: Gavish & Donoho (2017), eq. 2, in units of the noise. eta estimates the singular
    value without noise: it also undoes the growth that noise causes.

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
    t = s.clamp(min=edge)
    # (s - a - b)^2 - 4 a b as two factors, which cannot overflow
    return ((t - edge) / t * ((t - (math.sqrt(b) - math.sqrt(a)) ** 2) / t)).sqrt()


def _features(z: Tensor, patch: int) -> Tensor:
    """The strongest principal components of all patches of images (K, H, W): (num_features, n_h, n_w).

    Distances between features are distances between patches without most of the noise, at a fraction of the work.
    """
    patches = z.unfold(1, patch, 1).unfold(2, patch, 1)  # (K, n_h, n_w, p, p), a view
    count = patches.shape[1] * patches.shape[2]
    subset = torch.arange(0, count, max(1, count // 4096), device=z.device)
    sample = patches[:, subset // patches.shape[2], subset % patches.shape[2]].permute(0, 2, 3, 1).flatten(0, 2)
    sample = sample[None, :, :, None]
    covariance = covariance_sum(sample, mean=pixel_mean(sample))
    _, vectors = _eigh(covariance[None])
    kernels = vectors[0, :, -_NUM_FEATURES:].t().reshape(-1, z.shape[0], patch, patch)
    return F.conv2d(z[None], kernels)[0]


def _match(features: Tensor, stride: int, window: int = WINDOW, group: int = GROUP) -> Tensor:
    """For each reference patch, the positions of the `group` nearest ones in its window, itself included."""
    _, n_h, n_w = features.shape
    references = [  # 0, s, 2 s ... and the last
        torch.arange(0, n - 1 + stride, stride, device=features.device).clamp_(max=n - 1) for n in (n_h, n_w)
    ]
    reference = features[:, references[0][:, None], references[1], None]
    # nothing beyond the border is similar
    padded = F.pad(features, (window, window, window, window), value=math.inf)
    side = 2 * window + 1
    distance = features.new_empty(len(references[0]), len(references[1]), side, side)
    # on the CPU one line of the windows at a time, which stays in the cache; on a GPU many, for few launches
    lines = 1 if features.is_cpu else max(1, _CHUNK_ON_DEVICE // (len(features) * distance[:, :, 0].numel()))
    for i in range(0, side, lines):
        out = distance[:, :, i : i + lines]
        rows = references[0] + torch.arange(i, i + out.shape[2], device=features.device)[:, None]
        # (features, lines, rows, columns, side)
        candidates = padded[:, rows].unfold(3, side, 1)[:, :, :, references[1]]
        out.copy_(candidates.sub_(reference[:, None]).square_().sum(0).movedim(0, 2))
    distance = distance.flatten(2)
    distance[:, :, side * side // 2] = -1  # the reference itself comes first, even among equals
    available = min(n_h, window + 1) * min(n_w, window + 1)  # in a corner
    nearest = distance.topk(min(group, available), largest=False, sorted=False).indices
    # nearest = i side + j is i rows and j columns, thus i n_w + j positions, from the first patch of the window
    first = torch.add(references[1], references[0][:, None], alpha=n_w) - window * (n_w + 1)
    positions = nearest.add(nearest // side, alpha=n_w - side).add_(first[:, :, None]).flatten(0, 1)
    # with NaN, which a GPU reports only later, a position beyond the border may be nearest
    return positions if features.is_cpu else positions.clamp_(0, n_h * n_w - 1)


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigendecompositions; on the CPU in one thread, because several would mostly wait for each other."""
    try:
        eigh = torch.linalg.eigh
        ((values, vectors),) = side_by_side(eigh, [matrices]) if matrices.is_cpu else [eigh(matrices)]
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise FloatingPointError(_NOT_FINITE) from error
    return values, vectors

"""The second opinion: the camera and total variation in plain loops and dense matrices, float64, numpy only.

Written from the equations alone and importing nothing of the package, so that a shared mistake is unlikely. Everything
here is slow on purpose; use it on small sizes.
"""

import math

import numpy as np


def band_of(mask: np.ndarray, c: int) -> np.ndarray:
    """m_c of a mask (H, W) shared by all bands or (C, H, W)."""
    return mask if mask.ndim == 2 else mask[c]


def detector_columns(width: int, shifts: tuple[int, ...]) -> int:
    """Columns touched by at least the outermost bands: counted, not computed from a formula."""
    touched = [j + d for d in shifts for j in range(width)]
    return len(range(min(touched), max(touched) + 1))


def forward(x: np.ndarray, mask: np.ndarray, shifts: tuple[int, ...]) -> np.ndarray:
    """y[i, j + d_c - min d] += m_c[i, j] x_c[i, j] for one cube (C, H, W), voxel by voxel."""
    bands, height, width = x.shape
    y = np.zeros((height, detector_columns(width, shifts)))
    for c in range(bands):
        for i in range(height):
            for j in range(width):
                y[i, j + shifts[c] - min(shifts)] += float(band_of(mask, c)[i, j]) * float(x[c, i, j])
    return y


def adjoint(y: np.ndarray, mask: np.ndarray, shifts: tuple[int, ...]) -> np.ndarray:
    """x_c[i, j] = m_c[i, j] y[i, j + d_c - min d] for one measurement (H, W'), voxel by voxel."""
    height, width = mask.shape[-2:]
    x = np.zeros((len(shifts), height, width))
    for c in range(len(shifts)):
        for i in range(height):
            for j in range(width):
                x[c, i, j] = float(band_of(mask, c)[i, j]) * float(y[i, j + shifts[c] - min(shifts)])
    return x


def matrix(mask, shifts, weights=None, psf=None) -> np.ndarray:
    """Phi, (H W', C H W), by loops over voxels, the two pixels that a real-valued displacement falls between, and the
    taps of a blur, (M,) or (C, M); all arguments but the shifts are tensors or arrays."""
    mask, bands, (height, width) = np.asarray(mask), len(shifts), mask.shape[-2:]
    first, last = math.floor(min(shifts)), math.ceil(max(shifts))
    columns = width + last - first
    phi = np.zeros((height, columns, bands, height, width))
    for c, d in enumerate(shifts):
        whole = math.floor(d)
        p = np.ones(1) if psf is None else np.asarray(psf if psf.ndim == 1 else psf[c], dtype=float)
        p = p / p.sum()
        for i in range(height):
            for j in range(width):
                light = float(band_of(mask, c)[i, j])
                for t, along in enumerate(p):
                    for neighbor, share in ((0, 1 - (d - whole)), (1, d - whole)):
                        column = j + t - len(p) // 2 + whole - first + neighbor
                        if 0 <= column < columns:
                            phi[i, column, c, i, j] += light * along * share
    phi = phi.reshape(height * columns, -1)
    return phi if weights is None else np.asarray(weights).reshape(-1, 1) * phi


def difference_matrix(height: int, width: int) -> np.ndarray:
    """D of one image, (2 H W, H W): forward differences along width, then along height; 0 across the far border."""
    d = np.zeros((2, height, width, height, width))
    for i in range(height):
        for j in range(width):
            if j + 1 < width:
                d[0, i, j, i, j + 1] += 1
                d[0, i, j, i, j] -= 1
            if i + 1 < height:
                d[1, i, j, i + 1, j] += 1
                d[1, i, j, i, j] -= 1
    return d.reshape(2 * height * width, height * width)


def tv(x: np.ndarray) -> float:
    """Isotropic total variation of a cube (C, H, W), pixel by pixel."""
    bands, height, width = x.shape
    total = 0.0
    for i in range(height):
        for j in range(width):
            for c in range(bands):
                right = x[c, i, j + 1] - x[c, i, j] if j + 1 < width else 0.0
                down = x[c, i + 1, j] - x[c, i, j] if i + 1 < height else 0.0
                total += (float(right) ** 2 + float(down) ** 2) ** 0.5
    return total


def tv_prox(v: np.ndarray, weight: float, *, gap: float = 1e-11) -> np.ndarray:
    """argmin_u 1/2 |u - v|^2 + weight TV(u), to a duality gap <= gap (|v|^2 + 1), or RuntimeError.

    Nesterov-accelerated gradient on the dual with restart, on the dense D: another algorithm than the package's.
    """
    bands, height, width = v.shape
    d = difference_matrix(height, width)
    flat = np.asarray(v, dtype=np.float64).reshape(bands, -1)

    def project(q: np.ndarray) -> np.ndarray:
        pairs = q.reshape(bands, 2, -1)
        size = np.sqrt((pairs**2).sum(axis=1, keepdims=True))
        return (pairs * (weight / np.maximum(size, max(weight, 1e-300)))).reshape(q.shape)

    def primal_minus_dual(q: np.ndarray) -> float:
        u = flat - q @ d
        return weight * tv(u.reshape(v.shape)) - float(((u @ d.T) * q).sum())

    q = np.zeros((bands, 2 * height * width))
    ahead, t = q, 1.0
    for k in range(200_000):
        new = project(ahead + (flat - ahead @ d) @ d.T / 8)
        if ((ahead - new) * (new - q)).sum() > 0:
            t = 1.0
        t_new = (1 + (1 + 4 * t * t) ** 0.5) / 2
        ahead, q, t = new + (t - 1) / t_new * (new - q), new, t_new
        if k % 20 == 0 and primal_minus_dual(q) <= gap * (float((flat**2).sum()) + 1):
            return (flat - q @ d).reshape(v.shape)
    raise RuntimeError(f"no certified solution: gap {primal_minus_dual(q)}")


def gap_objective(v: np.ndarray, y: np.ndarray, phi: np.ndarray, weight: float) -> float:
    """F(v) = 1/2 (y - Phi v)^T (Phi Phi^T)^+ (y - Phi v) + weight TV(v)."""
    r = y.ravel() - phi @ v.ravel()
    return 0.5 * float(r @ np.linalg.pinv(phi @ phi.T) @ r) + weight * tv(v)


def tv_objective(x: np.ndarray, y: np.ndarray, phi: np.ndarray, weight: float) -> float:
    """1/2 |Phi x - y|^2 + weight TV(x)."""
    r = phi @ x.ravel() - y.ravel()
    return 0.5 * float(r @ r) + weight * tv(x)

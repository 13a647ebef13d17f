"""The subspace solver against dense convex solves of what it states."""

import math
from dataclasses import replace
from functools import partial

import cases
import numpy as np
import oracle
import pytest
import torch
from cases import F64, make_mask, tv_prox
from messages import refused

from cassi import CASSI, MultiShot, gap
from cassi.kernels.dispatch import eager
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.detector import brightness
from cassi.optics.psf import gaussian_psf
from cassi.priors.spectral_basis import analyse, coefficient_weights, smooth_basis, synthesise
from cassi.priors.tv import TVDenoiser
from cassi.solvers.subspace_tv import MAX_MOMENTUM, PRIOR_STRENGTH, subspace_tv


def camera(size=(4, 5, 6), shifts=(0, 1, 2, 3), **more: object) -> CASSI:
    return cases.camera(size, shifts, **more)[0]


def scene(A: CASSI, batch: tuple[int, ...] = (), seed: int = 3) -> torch.Tensor:
    """A cube >= 0 of a few flat patches whose spectra are smooth."""
    rng = np.random.default_rng(seed)
    C, H, W = A.cube_shape
    x, t = np.empty((*batch, C, H, W)), np.linspace(0, 1, C)
    for index in np.ndindex(*batch):
        spectra = [0.2 + rng.random() + 0.3 * np.cos(math.pi * t * rng.integers(1, 3)) for _ in range(2)]
        left, right = (spectrum[:, None, None] for spectrum in spectra)
        x[index] = np.where(np.arange(W) < rng.integers(1, W), left, right)
        x[index][:, : H // 2] *= 0.6
    return torch.from_numpy(x).to(A.dtype)


CAMERAS = {
    "grey": {}, "per-band": {"kind": "per-band"}, "signed": {"kind": "signed"}, "negative": {"shifts": (0, -2, -4, -6)},
    "unequal": {"shifts": (3, -2, 0, -2)}, "video": {"shifts": (0, 0, 0, 0), "kind": "per-band"},
    "one-band": {"size": (1, 3, 4), "shifts": (2,)}, "dark-column": {"kind": "dark-column"},
    "many": {"size": (7, 9, 3), "shifts": (0, 2, 3, 5, 8, 9, 13), "kind": "binary"},
}  # fmt: skip


def dense_run(A, y, B, variance, nonnegative, num_iters, tv_weight, w):
    """The docstring's lines with dense matrices, detector pixel by detector pixel; z and e at the end."""
    _C, H, W = A.cube_shape
    phi = oracle.matrix(A.mask.double().numpy(), A.shifts, None if A.weights is None else A.weights.double().numpy())
    gram, up = np.diag(phi @ phi.T), np.kron(B.T, np.eye(H * W))
    D, sees = np.where(gram > 0, gram, 1), phi @ up  # Phi B^T
    flat = y.double().numpy().ravel()
    a = np.where(gram > 0, 0.6 / tv_weight**2 * np.broadcast_to(variance, y.shape).ravel() / D, 0)
    gamma, omega = 1 - np.minimum(1, a), np.where(gram > 0, 1 / D, 0) / np.maximum(1, a)
    e, z, q = np.zeros_like(flat), sees.T @ (omega * flat), None
    u = np.zeros(len(up))
    for _ in range(num_iters):
        r = flat - sees @ z
        e = gamma * (e + r)
        step = sees.T @ (omega * (e + r))
        if nonnegative:
            p = np.maximum(u - up @ z, 0)
            step += 0.3 * up.T @ (2 * p - u)
            u = p
        v = torch.from_numpy((z + step).reshape(len(B), H, W))
        denoised, q = tv_prox(v, tv_weight * torch.from_numpy(w).view(-1, 1, 1), num_iters=3, dual=q)
        z = denoised.numpy().ravel()
    return z.reshape(len(B), H, W), e.reshape(y.shape)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("name", CAMERAS)
def test_the_lines_of_the_docstring(name, nonnegative, weighted, path):
    """Compiled and eager runs agree with the equations written in dense matrices, with noise that differs by pixel."""
    A = camera(**CAMERAS[name], weighted=weighted)
    B = smooth_basis(A.num_bands, 3)
    y = A.forward(scene(A))
    rng = np.random.default_rng(4)
    variance = torch.from_numpy(rng.uniform(0, 2, A.measurement_shape) ** 4)  # some a > 1, some near 0
    weights = coefficient_weights(len(B))
    result, state = subspace_tv(A, y, B, variance=variance, tv_weight=0.7, nonnegative=nonnegative, num_iters=7)
    z, e = dense_run(A, y, B.numpy(), variance.numpy(), nonnegative, 7, 0.7, weights.numpy())
    scale = np.abs(z).max()
    np.testing.assert_allclose(state.z.numpy() / scale, z / scale, atol=1e-9)
    lit = A.gram_diag().numpy() > 0
    np.testing.assert_allclose(state.e.numpy()[lit] / scale, e[lit] / scale, atol=1e-8)
    torch.testing.assert_close(result.x, torch.einsum("kc,khw->chw", B, state.z))


@pytest.mark.parametrize("batch", [(2,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_batch_axes(batch, dtype, path):
    """Snapshots of a stack are reconstructed as they are alone, once the levels they share are the same."""
    A = camera((4, 8, 9), dtype=dtype, shifts=(0, -1, 2, 1))
    y = A.forward(scene(A, batch).clone())
    y = y / y.sum((-1, -2), keepdim=True) * 50
    B = smooth_basis(4, 3)
    many = subspace_tv(A, y, B, variance=0.01, num_iters=6)[0].x
    assert many.shape == (*batch, 4, 8, 9) and many.dtype == dtype
    for index in np.ndindex(*batch):
        alone = subspace_tv(A, y[index], B, variance=0.01, num_iters=6)[0].x
        torch.testing.assert_close(many[index], alone, rtol=1e-4 if dtype == torch.float32 else 1e-10, atol=1e-5)


def of_shots(kind: str) -> MultiShot:
    """Three, with pixels left out in each."""
    shots = [CASSI(torch.from_numpy(make_mask(kind, 4, 6, 9, seed=s)), (0, 1, 2, 3)) for s in range(3)]
    return MultiShot(tuple(shots)).weighted((cases.random(3, 6, 12, seed=5) > -1.3).double())


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize(
    ("make", "rtol", "atol"),
    [
        (partial(of_shots, "grey"), 1e-9, 1e-11), (partial(of_shots, "per-band"), 1e-9, 1e-11),
        (partial(camera, (11, 16, 20), range(0, 22, 2), kind="per-band", weighted=True, dtype=torch.float32),
            1e-4, 1e-4),
    ],
)  # fmt: skip
def test_one_kernel_for_all_of_a_step_does_what_eager_torch_does(make, rtol, atol, nonnegative):
    A = make()
    y = A.forward(scene(A))
    settings = {"basis": smooth_basis(A.num_bands, 3), "variance": 0.01 * y.abs(), "nonnegative": nonnegative}
    fused, run = subspace_tv(A, y, **settings, num_iters=20)
    with eager():
        plain, same = subspace_tv(A, y, **settings, num_iters=20)
    torch.testing.assert_close(fused.x, plain.x, rtol=rtol, atol=atol)
    torch.testing.assert_close(run.e, same.e, rtol=rtol, atol=atol)


def objective(z, y, sees, sigma2, w, kappa) -> float:
    """1/2 sum r^2 / sigma^2 + kappa sum_k w_k TV(z_k), rows of weight 0 left out."""
    r = (y.ravel() - sees @ z.ravel()) / np.sqrt(sigma2.ravel())
    return 0.5 * float(r @ r) + kappa * sum(w[k] * oracle.tv(z[k : k + 1]) for k in range(len(w)))


def minimise(y, sees, sigma2, w, kappa, shape, up=None, iters=1500) -> np.ndarray:
    """The minimiser of `objective` by ADMM with dense inverses, where up z >= 0 if given: splits gradients and cube."""
    K, H, W = shape
    d = np.kron(np.eye(K), oracle.difference_matrix(H, W))
    scaled = sees / np.sqrt(sigma2.ravel())[:, None]
    target = scaled.T @ (y.ravel() / np.sqrt(sigma2.ravel()))
    rho = 0.05 * np.linalg.norm(scaled, 2) ** 2
    normal = scaled.T @ scaled + rho * d.T @ d
    if up is not None:
        normal = normal + rho * up.T @ up
    inverse = np.linalg.inv(normal + 1e-12 * np.eye(len(normal)))
    q, p = np.zeros(len(d)), np.zeros(len(d))
    s, t = (None, None) if up is None else (np.zeros(len(up)), np.zeros(len(up)))
    limit = (kappa / rho) * np.repeat(w, H * W).reshape(K, 1, H * W)
    for _ in range(iters):
        right = target + rho * d.T @ (q - p)
        if up is not None:
            right = right + rho * up.T @ (s - t)
        z = inverse @ right
        v = (d @ z + p).reshape(K, 2, H * W)
        q = (v * np.maximum(1 - limit / np.maximum(np.sqrt((v**2).sum(1, keepdims=True)), 1e-300), 0)).ravel()
        p = p + d @ z - q
        if up is not None:
            s = np.maximum(up @ z + t, 0)
            t = t + up @ z - s
    return z.reshape(shape)


@pytest.fixture(scope="module")
def noisy():
    """A tiny camera with pixels left out, a noisy measurement whose variance differs by pixel, and its matrices."""
    A = camera((4, 5, 6), shifts=(0, 2, 1, -1), kind="per-band")
    keep = (torch.rand(A.measurement_shape, generator=torch.Generator().manual_seed(8)) < 0.85).to(F64)
    A = A.weighted(keep)
    rng = np.random.default_rng(9)
    x = scene(A)
    x[:, 2:] *= 0.02  # a dark part, where noise makes radiance negative
    clean = A.forward(x)
    variance = torch.from_numpy(0.02 + 0.1 * rng.random(A.measurement_shape) ** 3)
    y = (clean + variance.sqrt() * torch.from_numpy(rng.standard_normal(A.measurement_shape))) * keep
    B = smooth_basis(4, 3)
    up = np.kron(B.numpy().T, np.eye(30))
    rows = np.flatnonzero(keep.numpy().ravel())
    sees = (oracle.matrix(A.mask.numpy(), A.shifts) @ up)[rows]  # rows left out are gone, not weighted
    return A, y, variance, B, sees, [t.numpy().ravel()[rows] for t in (y, variance)], up


@pytest.mark.long
@pytest.mark.parametrize(("strength", "nonnegative"), [(0.4, False), (4.0, False), (0.4, True)])
def test_fixed_point_minimises_the_stated_objective(noisy, strength, nonnegative):
    """kappa = strength / level, whatever lambda, and a, on both sides of 1: it depends on kappa sigma^2 alone. Among
    cubes without negative radiance, if asked for; without that some is clearly negative."""
    A, y, variance, B, sees, (y_cut, sigma2), up = noisy
    w, kappa = coefficient_weights(3).numpy(), strength / brightness(A, y)
    iters, num_iters = (4000, 3000) if nonnegative else (1500, 1200)
    best = minimise(y_cut, sees, sigma2, w, kappa, (3, 5, 6), up if nonnegative else None, iters=iters)
    least = objective(best, y_cut, sees, sigma2, w, kappa)
    for tv_weight in (0.05, 0.6) if nonnegative else (0.05, 3.0, 0.6):
        settings = {"variance": kappa * tv_weight / PRIOR_STRENGTH * variance, "tv_weight": tv_weight}
        result, state = subspace_tv(A, y, B, **settings, nonnegative=nonnegative, num_iters=num_iters)
        found = objective(state.z.numpy(), y_cut, sees, sigma2, w, kappa)
        assert abs(found / least - 1) < 1e-4, (tv_weight, found, least)
        if nonnegative:
            assert float(result.x.min()) > -1e-4 * float(result.x.max())
            torch.testing.assert_close(state.z, torch.from_numpy(best), atol=2e-3, rtol=0)
    assert nonnegative or strength > 1 or float(result.x.min()) < -0.01


@pytest.mark.parametrize("momentum", [0.0, MAX_MOMENTUM])
@pytest.mark.parametrize("variance", [0.0, 0.1, 100.0])
@pytest.mark.parametrize(("size", "shifts"), [((3, 8, 8), (0, 0, 0)), ((4, 8, 9), (0, 1, 2, 3)), ((1, 6, 6), (0,))])
def test_negative_measurements_do_not_make_it_diverge(size, shifts, variance, momentum):
    """Offset-corrected darkness is negative half the time: data and pull then tug at the same voxels."""
    A = CASSI(torch.ones(size[1:], dtype=F64), shifts)
    y = torch.randn(A.measurement_shape, dtype=F64, generator=torch.Generator().manual_seed(1)) + 0.3
    result, _ = subspace_tv(A, y, smooth_basis(size[0], 3), variance=variance, num_iters=400, momentum=momentum)
    assert result.history[-1].change < 0.01
    assert float(result.x.abs().max()) < 2 * float(y.abs().max())


@pytest.mark.parametrize("kind", ["per-band", "dark-column"])
def test_without_noise_it_is_accelerated_gap_in_the_subspace(kind, path):
    """From the same start z = B Phi^+ y: e^k is the sum of misfits, and b^k - Phi v^k = e^k + r^k."""
    A = camera((5, 7, 6), shifts=(0, 2, 4, 6, 8), kind=kind, weighted=True)
    A = A.weighted((A.weights > 0).to(F64))
    y = A.forward(scene(A))
    B, w = smooth_basis(5, 4), coefficient_weights(4).view(-1, 1, 1)
    start = synthesise(analyse(A.pinv(y), B), B)
    denoise = TVDenoiser(0.2 * w, num_iters=3)
    expected = gap(A, y, lambda x, k: synthesise(denoise(analyse(x, B), k), B), num_iters=25, x0=start)
    found, _ = subspace_tv(A, y, B, tv_weight=0.2, nonnegative=False, num_iters=25)
    torch.testing.assert_close(found.x, expected.x, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose([r.residual for r in found.history], [r.residual for r in expected.history], rtol=1e-7)


def test_a_state_goes_on_exactly_and_is_not_modified(path):
    A = camera((4, 8, 9))
    y = A.forward(scene(A))
    B = smooth_basis(4, 3)
    whole, end = subspace_tv(A, y, B, variance=0.01, num_iters=12)
    _, middle = subspace_tv(A, y, B, variance=0.01, num_iters=5)
    kept = [t.clone() for t in (middle.z, middle.e, middle.q)]
    rest, again = subspace_tv(A, y, B, variance=0.01, num_iters=7, state=middle)
    assert torch.equal(whole.x, rest.x) and torch.equal(end.e, again.e) and torch.equal(end.q, again.q)
    assert all(torch.equal(a, b) for a, b in zip(kept, (middle.z, middle.e, middle.q), strict=True))


def test_a_prior_of_ones_own_in_place_of_tv(path):
    """A denoiser that is the TV prox gives what the solver gives; so does one with a buffer of its own."""
    A = camera((4, 8, 9))
    y, B, w = A.forward(scene(A)), smooth_basis(4, 3), coefficient_weights(3).view(-1, 1, 1)
    expected, _ = subspace_tv(A, y, B, tv_weight=0.3, num_iters=9)
    found, _ = subspace_tv(A, y, B, tv_weight=0.3, num_iters=9, denoise=TVDenoiser(0.3 * w, num_iters=3))
    torch.testing.assert_close(found.x, expected.x)
    inner, buffer = TVDenoiser(0.3 * w, num_iters=3), torch.empty(3, 8, 9, dtype=F64)
    reused, _ = subspace_tv(A, y, B, tv_weight=0.3, num_iters=9, denoise=lambda z, k: buffer.copy_(inner(z.clone(), k)))
    torch.testing.assert_close(reused.x, expected.x)
    np.testing.assert_allclose([r.change for r in reused.history], [r.change for r in expected.history], rtol=1e-6)


def halfway(z: torch.Tensor, k: int) -> torch.Tensor:
    return 0.5 * (z + torch.nn.functional.avg_pool2d(z, 3, 1, 1, count_include_pad=False))


def test_momentum_goes_on_along_the_last_step(path, monkeypatch):
    A, beta = camera((4, 8, 9)), 0.2
    run = partial(subspace_tv, A, A.forward(scene(A)) - 0.5, smooth_basis(4, 3), variance=0.01, denoise=halfway)
    last = v = run(num_iters=3)[1]
    found = run(num_iters=5, state=v, momentum=beta)[1]
    monkeypatch.setattr("cassi.solvers.subspace_tv.STEP", 0.9 / (1.2 * 1.4))
    for _ in range(5):
        turned = run(num_iters=1, state=v)[1]
        z, e = (getattr(turned, n) + beta * (getattr(turned, n) - getattr(last, n)) for n in ("z", "e"))
        last, v = turned, replace(turned, z=z, e=e)
    assert bool(v.u.any())
    torch.testing.assert_close((found.z, found.e, found.u), (v.z, v.e, v.u))


def test_a_linear_prior_settles_sooner_with_momentum():
    A = camera((6, 24, 24), shifts=tuple(range(6)))
    run = partial(subspace_tv, A, A.forward(scene(A)), smooth_basis(6, 4), denoise=halfway)
    settled, *others = (run(num_iters=n, momentum=b)[0].x for n, b in ((3000, 0), (60, 0), (90, 0), (60, MAX_MOMENTUM)))
    plain, more, faster = (float((x - settled).norm()) for x in others)
    assert faster < 1.1 * more < 0.8 * plain


def test_errors():
    A, B = camera((4, 8, 9)), smooth_basis(4, 3)
    y = A.forward(scene(A))
    broken = y.clone()
    broken[0, 0] = math.nan
    refused(subspace_tv, A, broken, B, error=FloatingPointError)
    for options in (
        {"basis": smooth_basis(5, 3)},
        {"basis": torch.ones(4, dtype=F64)}, {"variance": -1.0},
        {"variance": math.nan},
        {"variance": torch.full(A.measurement_shape, -1e-3)},
        {"tv_weight": 0.0}, {"tv_weight": math.nan},
        {"momentum": 0.34}, {"momentum": -0.1},
        {"y": y[:, 1:]}, {"num_iters": 0},
    ):  # fmt: skip
        refused(subspace_tv, error=ValueError, **{"A": A, "y": y, "basis": B, **options})
    _, state = subspace_tv(A, y, B, num_iters=1)
    for K, size in ((2, (4, 8, 9)), (4, (4, 8, 9)), (3, (4, 16, 9)), (3, (4, 8, 8))):
        other = camera(size)
        refused(subspace_tv, other, other.forward(scene(other)), smooth_basis(4, K), error=ValueError, state=state)
    # the compiled kernel writes where these say: another shape must never reach it
    for u in (torch.zeros(3, 8, 9), torch.zeros(1, 1, 1), torch.zeros(7), torch.zeros(2, 4, 8, 9)):
        refused(subspace_tv, A, y, B, error=ValueError, state=replace(state, u=u.double()))


OTHERS = {
    "blurred": lambda m, _: BlurredCASSI(m, (0.0, 1.3, 2.6, 4.2), psf=gaussian_psf(0.8).double()),
    "two shots": lambda m, other: MultiShot((CASSI(m, (0, 1, 2, 3)), CASSI(other, (0, 1, 2, 3)))),
    "turned": lambda m, other: MultiShot((CASSI(m, (0, 1, 2, 3)), CASSI(other, (3, 2, 1, 0)))),
}


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_other_cameras(name):
    """The fixed point minimises the same objective; of the matrix, which test_optics_contract.py holds them to."""
    A = OTHERS[name](*(torch.from_numpy(make_mask("grey", 4, 5, 6, seed=s)) for s in range(2)))
    phi = A.forward(torch.eye(120, dtype=F64).view(120, 4, 5, 6)).reshape(120, -1).T.numpy()
    y = A.forward(scene(camera()))
    y = y + 0.1 * torch.from_numpy(np.random.default_rng(3).standard_normal(y.shape))
    B, w = smooth_basis(4, 3), coefficient_weights(3).numpy()
    _, state = subspace_tv(A, y, B, variance=0.01, nonnegative=False, num_iters=1000)
    sees, sigma2 = phi @ np.kron(B.numpy().T, np.eye(30)), np.full(y.numel(), 0.01)
    kappa = 0.6 / brightness(A, y)
    least = objective(minimise(y.numpy(), sees, sigma2, w, kappa, (3, 5, 6)), y.numpy(), sees, sigma2, w, kappa)
    assert abs(objective(state.z.numpy(), y.numpy(), sees, sigma2, w, kappa) / least - 1) < 1e-4

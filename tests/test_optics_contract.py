"""What `Camera` promises, held for every camera there is against dense matrices made by loops."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from cases import F64, random
from messages import refused, refuses
from oracle import matrix
from torch import Tensor

from cassi import CASSI, Mosaic, MultiShot, double_disperser, video_camera
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.detector import brightness
from cassi.optics.protocol import Camera, Weighted
from cassi.photograph.view import SideView

TIGHT = {"tol": 1e-13, "max_iters": 500}


def masks(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def binary(*shape: int, seed: int = 0) -> Tensor:
    return (masks(*shape, seed=seed) < 0.5).double()


def row_weights(*shape: int) -> Tensor:
    w = masks(*shape, seed=4) + 0.5
    w.view(-1)[3] = 0
    return w


class Sum(Camera):
    """A camera of one's own, with nothing but the two directions: it adds the bands, each with its own gain."""

    cube_shape, measurement_shape = (3, 4, 5), (4, 5)
    dtype, tol, max_iters = F64, 1e-13, 500
    gains = torch.tensor([1.0, 2.0, 0.5], dtype=F64).view(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sum(self.check_cube(x) * self.gains, -3)

    def adjoint(self, y: Tensor) -> Tensor:
        return self.check_measurement(y).unsqueeze(-3) * self.gains


class Case(NamedTuple):
    A: Camera
    matrix: np.ndarray  # that it must be


def of(A: Camera) -> Case:
    """The matrix from mask, shifts, blur and weights alone, shot by shot."""
    shots = A.shots if isinstance(A, MultiShot) else (A,)
    return Case(A, np.concatenate([matrix(s.mask, s.shifts, s.weights, getattr(s, "psf", None)) for s in shots]))


def double(mask: Tensor, shifts: tuple[int, ...]) -> Case:
    """y[i, j] = sum_c m[i, j + d_c - d_min] x_c[i, j], element by element."""
    A = double_disperser(mask, shifts)
    bands, height, width = A.cube_shape
    matrix = np.zeros((height, width, bands, height, width))
    masks = mask.expand(bands, *mask.shape[-2:])
    for c, i, j in np.ndindex(bands, height, width):
        matrix[i, j, c, i, j] = masks[c, i, j + shifts[c] - min(shifts)]
    return Case(A, matrix.reshape(height * width, -1))


FILTERS = np.array([[0, 1, 2], [2, 3, 1]])


def mosaic(response: np.ndarray | None = None, crosstalk: np.ndarray | None = None, weights=None) -> Case:
    """y[i, j] = sum_c sum_n X_kn R_nc x_c[i, j], k = P[i + 1, j + 2], pixel by pixel."""
    A = Mosaic.from_pattern(FILTERS, (4, 5), response, crosstalk=crosstalk, offset=(1, 2)).to(dtype=F64)
    R, X = (np.eye(4) if one is None else one for one in (response, crosstalk))
    matrix = np.zeros((4, 5, R.shape[1], 4, 5))
    for i, j, c, n in np.ndindex(4, 5, R.shape[1], 4):
        matrix[i, j, c, i, j] += X[FILTERS[(i + 1) % 2, (j + 2) % 3], n] * R[n, c]
    matrix = matrix.reshape(20, -1)
    return Case(A, matrix) if weights is None else Case(A.weighted(weights), weights.view(-1, 1).numpy() * matrix)


def multishot(num_shots: int, shape: tuple[int, int, int], shifts: tuple[int, ...], make=masks) -> MultiShot:
    return MultiShot(tuple(CASSI(mask, shifts) for mask in make(num_shots, *shape)))


def summed() -> np.ndarray:
    return np.kron(np.array([[1.0, 2.0, 0.5]]), np.eye(20))


def beside(A: CASSI | MultiShot, *, weighted: bool) -> Case:
    """s_k[i, j] = sum_c R_kc x_c[i, j] below the snapshots, in the first columns of the detector."""
    C, height, width = A.cube_shape
    R, w = masks(2, C, seed=5), masks(2, height, width, seed=6) if weighted else None
    seen = np.zeros((2, height, A.measurement_shape[-1], C, height, width))
    for k, i, j in np.ndindex(2, height, width):
        seen[k, i, j, :, i, j] = R[k] if w is None else w[k, i, j] * R[k]
    return Case(SideView(A, R, w, **TIGHT), np.concatenate([of(A).matrix, seen.reshape(-1, C * height * width)]))


def blurred(**changes: object) -> BlurredCASSI:
    parts = {"shifts": (0.0, 1.7, 3.4), "psf": torch.tensor([0.1, 1.0, 0.2]), **TIGHT, **changes}
    return BlurredCASSI(random(4, 5, seed=8).abs() + 0.5, **parts)


def uneven(*shape: int) -> Tensor:
    """A blur that can be undone: most of the light goes through one tap."""
    psf = random(*shape, seed=9).abs() / shape[-1]
    psf[..., shape[-1] // 2] += 2
    return psf


W = row_weights(4, 7)
CAMERAS: dict[str, Callable[[], Case]] = {
    "single disperser": lambda: of(CASSI(masks(4, 5), (0, 1, 2))),
    "one band, to the left of where it was": lambda: of(CASSI(masks(3, 4), (-3,))),
    "repeated shifts, a dark column": lambda: of(CASSI(masks(4, 5) * (torch.arange(5) > 0), (4, 4, 0, 30))),
    "signed mask, uneven shifts": lambda: of(CASSI(random(4, 5), (3, -2, 0))),
    "mask per band, weights": lambda: of(CASSI(random(3, 4, 5).abs(), (0, 1, 2), W)),
    "dark": lambda: of(CASSI(binary(4, 5), (0, 1, 2))),
    "sub-pixel": lambda: of(blurred(psf=None)),
    "blur": lambda: of(blurred()),
    "blur, weights": lambda: of(blurred(weights=row_weights(4, 9))),
    "blur per band, signed": lambda: of(
        BlurredCASSI(random(4, 5), (0.0, 1.7, 3.4), psf=random(3, 2).abs() + torch.tensor([0.0, 3.0]), **TIGHT)
    ),
    "blur, whole shifts": lambda: of(blurred(shifts=(0, 1, 2))),
    "blur of even width, to the left": lambda: of(blurred(shifts=(2.3, -0.7, -4.1), psf=uneven(4))),
    "blur wider than the picture": lambda: of(blurred(shifts=(0.0, 0.4, 1.0), psf=uneven(15))),
    "blur per band, wide": lambda: of(blurred(shifts=(3.2, 1.7, 0.0), psf=uneven(3, 31))),
    "blur, one band": lambda: of(blurred(shifts=(0.6,), psf=uneven(3))),
    "double disperser": lambda: double(masks(4, 9), (0, 2, 4)),
    "double disperser, binary, to the left": lambda: double(binary(3, 8), (0, -1, -2, -3)),
    "double disperser, mask per band": lambda: double(masks(3, 4, 7), (0, 1, 3)),
    "video": lambda: of(video_camera(masks(3, 4, 5))),
    "video, binary": lambda: of(video_camera(binary(4, 3, 4))),
    "mosaic": mosaic,
    "mosaic, weights": lambda: mosaic(weights=row_weights(4, 5)),
    "mosaic of wide filters": lambda: mosaic(masks(4, 3, seed=7).numpy()),
    "mosaic with crosstalk": lambda: mosaic(masks(4, 4, seed=7).numpy(), masks(4, 4, seed=8).numpy()),
    "two shots": lambda: of(multishot(2, (3, 4, 5), (0, 1, 2))),
    "two signed shots": lambda: of(multishot(2, (4, 5), (0, 1, 2), make=random)),
    "three binary shots": lambda: of(multishot(3, (4, 4, 6), (0, 2, 4, 6), make=binary)),
    "more shots than bands": lambda: of(multishot(4, (2, 3, 4), (1, 0))),
    "the same shot twice": lambda: of(MultiShot((CASSI(masks(4, 5), (0, 1)),) * 2)),
    "two video shots": lambda: of(MultiShot((video_camera(masks(3, 4, 5)), video_camera(masks(3, 4, 5, seed=1))))),
    "shots with weights": lambda: of(multishot(2, (3, 4, 5), (0, 1, 2)).weighted(row_weights(2, 4, 7))),
    "one of two shots with weights": lambda: of(
        MultiShot((CASSI(masks(4, 5), (0, 1, 2), W), CASSI(binary(4, 5), (0, 1, 2))))
    ),
    # the disperser turned by 180 degrees for the second: the Gram matrix is not block diagonal
    "opposite dispersion": lambda: of(
        MultiShot((CASSI(masks(4, 5), (0, 1, 2)), CASSI(masks(4, 5, seed=1), (0, -1, -2))), **TIGHT)
    ),
    "photograph beside it": lambda: beside(CASSI(masks(4, 5), (0, 1, 2)), weighted=False),
    "weighted photograph beside it": lambda: beside(CASSI(masks(4, 5), (0, 1, 2)), weighted=True),
    "photograph beside two shots": lambda: beside(multishot(2, (3, 4, 5), (0, 1, 2)), weighted=True),
    "one's own": lambda: Case(Sum(), summed()),
    "one's own, weights": lambda: Case(
        Sum().weighted(row_weights(4, 5)), row_weights(4, 5).view(-1, 1).numpy() * summed()
    ),
}  # fmt: skip


@pytest.fixture(params=CAMERAS, name="case", scope="module")
def each(request: pytest.FixtureRequest) -> Case:
    return CAMERAS[request.param]()


def pair(A: Camera, *batch: int) -> tuple[Tensor, Tensor]:
    return random(*batch, *A.cube_shape, seed=1), random(*batch, *A.measurement_shape, seed=2)


def flat(t: Tensor, batch: tuple[int, ...] = ()) -> np.ndarray:
    return t.detach().reshape(math.prod(batch), math.prod(t.shape[len(batch) :])).numpy()


def close(a: Tensor, b: Tensor | np.ndarray, tol: float = 1e-10) -> bool:
    b = (torch.tensor(b) if isinstance(b, np.ndarray) else b).reshape(a.shape)
    return bool((a - b).norm() <= tol * max(1.0, float(b.norm())))


def test_both_directions_are_the_matrix(case):
    A, matrix = case
    for batch in ((), (2,), (2, 3), (0,), (2, 0)):
        x, y = pair(A, *batch)
        assert close(A.forward(x), flat(x, batch) @ matrix.T, 1e-13)
        assert close(A.adjoint(y), flat(y, batch) @ matrix, 1e-13)
    assert torch.equal(A @ x, A.forward(x)) and A.num_bands == A.cube_shape[0]


def test_conversion_makes_another_camera_with_the_same_light(case, device):
    A = case.A
    if not hasattr(A, "to"):
        pytest.skip("cameras of one's own need not be converted")
    B, x = A.to(device=device, dtype=torch.float32), pair(A)[0]
    assert (A.dtype, B.dtype, B.device.type, B.tol) == (F64, torch.float32, device.type, A.tol)
    assert close(B.forward(x.to(B.device).float()).cpu().double(), A.forward(x), 1e-6)


def test_arguments_are_not_modified(case):
    A = case.A
    x, y = pair(A)
    before = x.clone(), y.clone()
    calls = ((A.forward, (x,)), (A.adjoint, (y,)), (A.solve, (y, 0.5)), (A.pinv, (y,)), (A.prox, (x, y, 0.5)))
    for call, given in calls:
        call(*given)
        assert torch.equal(x, before[0]) and torch.equal(y, before[1])


def test_the_diagonal_and_its_bound(case):
    A, matrix = case
    gram, shape = matrix @ matrix.T, A.measurement_shape
    bound = A.majorizer()
    assert tuple(bound.shape) == shape
    assert np.linalg.eigvalsh(np.diag(flat(bound)[0]) - gram).min() > -1e-12
    assert (flat(bound)[0] > 0).tolist() == (np.diag(gram) > 0).tolist()
    variances = torch.tensor([0.5, 2.0, 1.0, 3.0], dtype=F64)[: A.num_bands]
    each = variances.repeat_interleave(math.prod(A.cube_shape[1:])).numpy()
    if isinstance(A, Sum | Weighted):  # what is derived is a bound
        assert (flat(A.gram_diag())[0] >= np.diag(gram) - 1e-12).all()
        assert close(A.row_variance(variances), A.gram_diag() * variances.mean())
    else:
        assert close(A.gram_diag(), np.diag(gram))
        assert close(A.row_variance(variances), np.diag(matrix * each @ matrix.T))
    assert close(A.response(), np.abs(matrix).sum(1))
    assert close(A.absolute().adjoint(torch.ones(shape, dtype=F64)), np.abs(matrix).sum(0))
    assert A.norm() == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-12 if A.exact else 5e-3)


def test_covariances(case):
    """A B^T S B A^T p, and A (x sum_bands x A^T p), of one measurement and of a batch whose members have their own."""
    A, matrix = case
    rng, K = np.random.default_rng(5), min(2, A.num_bands)
    B, S, x, p = (torch.from_numpy(rng.standard_normal(shape)) for shape in (
        (K, A.num_bands), (3, K, 1), (3, *A.cube_shape), (3, *A.measurement_shape)))  # fmt: skip
    bands = matrix.reshape(len(matrix), A.num_bands, -1)
    for n in range(3):
        mixed = np.einsum("kc,ycp->ykp", B, bands).reshape(len(matrix), K, -1)
        spectral = np.einsum("ykp,k,zkp->yz", mixed, S[n, :, 0], mixed) @ flat(p[n])[0]
        summed = (bands * x[n].flatten(1).numpy()).sum(1)
        for found in (A.subspace_gram(p, B, S * B)[n], A.subspace_gram(p[n], B, S[n] * B)):
            assert close(found, spectral, 1e-12)
        for found in (A.common_gram(x, p)[n], A.common_gram(x[n], p[n])):
            assert close(found, summed @ summed.T @ flat(p[n])[0], 1e-12)


def test_no_buffer_is_shared(case):
    A = case.A
    for method in (A.gram_diag, A.majorizer, A.response, lambda: A.row_variance(torch.ones(A.num_bands, dtype=F64))):
        before = method().clone()
        method().fill_(torch.nan)
        assert torch.equal(method(), before)
    y = pair(A)[1]
    before = A.solve(y, 0.5)
    A.first_guess(y).fill_(torch.nan)
    assert torch.equal(A.solve(y, 0.5), before)


def test_brightness_of_a_flat_scene(case):
    A = case.A.absolute()
    x = torch.full((2, *A.cube_shape), 2.5, dtype=F64)
    assert brightness(A, A @ x) == pytest.approx(2.5)
    assert brightness(A, 0 * (A @ x)) == 1


def test_visibility_is_the_diagonal_of_the_projection(case):
    A, matrix = case
    seen = A.visibility()
    assert (seen is None) != A.exact
    if seen is not None:
        assert close(seen, np.diag(np.linalg.pinv(matrix) @ matrix), 1e-9)


def test_modes_are_those_of_the_gram_matrix_or_bound_it(case):
    """V D V^T, written out over all detector pixels, is at least A A^T, and A A^T itself where the camera is exact."""
    A, matrix = case
    values, vectors = A.modes()
    count = math.prod(A.measurement_shape)
    bound = np.diag(values.reshape(-1).numpy())
    if vectors is not None:
        shots, places = len(values), count // len(values)
        whole = np.zeros((shots, places, shots, places))
        flat = vectors.reshape(shots, shots, places).numpy()
        for j in range(places):
            whole[:, j, :, j] = flat[:, :, j]
        turn = whole.reshape(count, count)
        assert np.abs(turn @ turn.T - np.eye(count)).max() < 1e-12
        bound = turn @ bound @ turn.T
    rest = bound - matrix @ matrix.T
    assert np.linalg.eigvalsh(rest).min() > -1e-9
    if A.exact:
        assert np.abs(rest).max() < 1e-9


def test_weights_scale_the_rows_and_are_copied(case):
    A, matrix = case.A.weighted(None), case.matrix
    w = torch.rand(A.measurement_shape, dtype=F64, generator=torch.Generator().manual_seed(6)) + 0.5
    B, x = A.weighted(w), pair(A)[0]
    expected = w * (A @ x)
    w.fill_(torch.nan)
    assert close(B @ x, expected, 1e-14)
    B.weights.fill_(1)  # of several shots a stack is made; what is handed out is nobody else's
    assert case.A.weights is None or close(case.A @ x, flat(x) @ matrix.T)
    assert A.weights is None and B.weighted(None).weights is None


def test_what_a_left_out_pixel_holds_has_no_influence(case):
    A, (x, y) = case.A, pair(case.A)
    keep = torch.ones(A.measurement_shape, dtype=F64)
    keep.view(-1)[7] = 0
    B = A.leave_out(keep)
    assert close(B @ x, keep * (A @ x), 1e-14)
    if A.weights is not None:
        assert torch.equal(B.weights, A.weights * keep)
    spoiled = y.clone()
    spoiled.view(-1)[7] = 1e6
    y.view(-1)[7] = 0
    assert torch.equal(B.adjoint(spoiled), B.adjoint(y))
    assert close(B.pinv(spoiled), B.pinv(y), 1e-8)
    assert close(B.prox(x, spoiled, 0.3), B.prox(x, y, 0.3), 1e-8)
    assert close(B.first_guess(spoiled), B.first_guess(y), 1e-12)


def test_solve_and_prox_are_the_inverse(case):
    A, matrix = case
    v, y = pair(A, 2)
    gram = matrix @ matrix.T
    lit = np.diag(gram) > 0  # what a dark pixel holds leads nowhere
    for rho in (0.03, 2.0):
        inverse = np.linalg.inv(gram + rho * np.eye(len(matrix)))
        assert close(A.solve(y, rho).reshape(2, -1)[:, lit], (flat(y, (2,)) @ inverse)[:, lit], 1e-9)
        normal, right = matrix.T @ matrix + rho * np.eye(matrix.shape[1]), flat(y, (2,)) @ matrix + rho * flat(v, (2,))
        assert close(A.prox(v, y, rho), np.linalg.solve(normal, right.T).T, 1e-9)


def test_the_pseudo_inverse_is_that_of_moore_and_penrose(case):
    A, matrix = case
    (x, y), (x2, y2) = pair(A), pair(A)
    x2, y2 = x2.flip(-1), y2.flip(-1)
    if not A.exact:  # an iteration that is stopped: on what the camera can make, and well conditioned
        y, y2 = A @ x, A @ x2
    assert close(A.pinv(y), np.linalg.pinv(matrix, rcond=1e-10) @ flat(y)[0], 1e-7)
    assert close(A @ A.pinv(A @ x), A @ x, 1e-8)
    assert close(A.pinv(A @ A.pinv(y)), A.pinv(y), 1e-8)
    assert float(((A @ A.pinv(y)) * y2).sum()) == pytest.approx(float((y * (A @ A.pinv(y2))).sum()), abs=1e-7)
    assert float((A.pinv(A @ x) * x2).sum()) == pytest.approx(float((x * A.pinv(A @ x2)).sum()), abs=1e-7)


def test_what_is_kept_of_a_camera_follows_a_learned_mask_and_an_iterated_inverse_has_no_derivative_in_it():
    mask = (masks(4, 5) + 0.5).requires_grad_()
    own = Sum()
    own.gains = own.gains.clone().requires_grad_()
    blurred, shots = BlurredCASSI(mask, (0.0, 1.5)), MultiShot((CASSI(mask, (0, 1)), CASSI(mask, (0, -1))))
    for A in (blurred, shots, own, own.weighted(row_weights(4, 5))):
        refused(A.pinv, torch.ones(A.measurement_shape, dtype=F64), error=RuntimeError)
    mask, y = torch.nn.Parameter(masks(4, 5) + 0.5), torch.ones(4, 7, dtype=F64)
    before = (A := BlurredCASSI(mask, (0.0, 1.5))).first_guess(y).detach()
    mask.data *= 3
    torch.testing.assert_close(A.first_guess(y).detach(), before / 3)


def test_wrong_arguments_are_named(case):
    A = case.A
    x, y = pair(A)
    wanted, one = x.clone().requires_grad_(), torch.ones(A.measurement_shape, dtype=F64)
    swapped = A.measurement_shape != A.cube_shape[-2:]  # else a cube is a batch of measurements
    for error, call in (
        (TypeError, lambda: A @ x.numpy()), (TypeError, lambda: A.adjoint(y.numpy())),
        (TypeError, lambda: A.forward(x.float())), (TypeError, lambda: A.adjoint(y.float())),
        (ValueError, lambda: A.forward(x[..., 1:])), (ValueError, lambda: A.adjoint(y[..., 1:])),
        *([(ValueError, lambda: A @ y), (ValueError, lambda: A.adjoint(x[None]))] * swapped),
        (ValueError, lambda: A.data_step_(x, x, y, y, y, rho=-1.0)),
        (ValueError, lambda: A.data_step_(x[None], x[None], y, y, y)),
        (RuntimeError, lambda: A.data_step_(wanted, torch.empty_like(x), y, y.clone(), y.clone())),
        *((ValueError, partial(A.prox, x, y, rho)) for rho in (0.0, -1.0, math.nan)),
        (ValueError, lambda: A.weighted(one[..., 1:])),
        *((ValueError, partial(A.weighted, w)) for w in (one - 2, one * math.nan, one / 0)),
    ):  # fmt: skip
        with refuses(error, hide=r"\(\d[\d, ]*\)"):
            call()


def test_transforms_of_torch_func(case):
    """vmap, vjp, jvp, a gradient and a second derivative over forward, adjoint, pseudo-inverse, against the matrix."""
    A, matrix = case
    maps = [(A.forward, matrix, A.cube_shape), (A.adjoint, matrix.T, A.measurement_shape)]
    if A.exact:
        inverse = flat(A.pinv(torch.eye(len(matrix), dtype=F64).view(-1, *A.measurement_shape)), (len(matrix),)).T
        maps.append((A.pinv, inverse, A.measurement_shape))
    for function, M, shape in maps:
        u, v = random(3, *shape, seed=1), random(*shape, seed=2)
        assert close(torch.vmap(function)(u), flat(u, (3,)) @ M.T)
        assert close(torch.vmap(function, in_dims=1, out_dims=1)(u.movedim(0, 1)).movedim(1, 0), flat(u, (3,)) @ M.T)
        value, pullback = torch.func.vjp(function, v)
        w = random(*value.shape, seed=3)
        assert close(value, M @ flat(v)[0]) and close(pullback(w)[0], M.T @ flat(w)[0])
        value, tangent = torch.func.jvp(function, (v,), (u[0],))
        assert close(value, M @ flat(v)[0]) and close(tangent, M @ flat(u[0])[0])

        def loss(v, function=function):
            return function(v).square().sum() / 2

        assert close(torch.func.grad(loss)(v), M.T @ (M @ flat(v)[0]))
        assert close(torch.vmap(torch.func.grad(loss))(u), flat(u, (3,)) @ M.T @ M)
        assert close(torch.func.jvp(torch.func.grad(loss), (v,), (u[0],))[1], M.T @ (M @ flat(u[0])[0]))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(v, u[0])
            assert close(torch.autograd.forward_ad.unpack_dual(function(dual)).tangent, M @ flat(u[0])[0])
    x, y = (t.requires_grad_() for t in pair(A))
    assert torch.autograd.gradcheck(lambda x, y: A.prox(x, y, 0.3), (x, y), fast_mode=True, atol=1e-4)


@pytest.mark.parametrize(
    "camera",
    [
        partial(CASSI, shifts=(0, 2, 1)), partial(BlurredCASSI, shifts=(0.0, 1.7, 2.5)),
        partial(BlurredCASSI, shifts=(3.2, 1.7, 0.0), psf=uneven(3, 4)),
    ],
)  # fmt: skip
def test_transforms_of_torch_func_over_the_mask(camera):
    """d(Phi(m) x) / dm is linear in m: Phi(dm) x."""
    x, m, dm = random(3, 4, 5, seed=1), masks(4, 5), random(2, 4, 5, seed=2)

    def light(mask):
        return camera(mask).forward(x)

    assert close(torch.func.jvp(light, (m,), (dm[0],))[1], light(dm[0]))
    assert close(torch.vmap(light)(dm), torch.stack([light(one) for one in dm]))
    y = light(m)
    found = torch.func.grad(lambda mask: light(mask).square().sum() / 2)(m)
    assert close(torch.sum(found * dm[0]), (y * light(dm[0])).sum())

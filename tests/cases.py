"""Small cameras that tests run over, sizes x shifts x masks, cameras of other makes, and scenes for them."""

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import oracle
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor

from cassi import CASSI
from cassi.optics.protocol import Camera
from cassi.priors.tv import tv_steps

F64 = torch.float64


def random(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    """Normal numbers, the same for a seed in every precision."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


MASKS = ["binary", "grey", "signed", "per-band", "dark-column"]
BATCHES = [(), (2,), (2, 3)]


def make_mask(kind: str, num_bands: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    """A float64 mask (H, W), or (C, H, W) for "per-band"."""
    rng = np.random.default_rng(seed)
    if kind == "binary":
        return (rng.random((height, width)) < 0.6).astype(np.float64)
    if kind == "grey":
        return rng.uniform(0.2, 1.0, (height, width))
    if kind == "signed":
        return rng.standard_normal((height, width))
    if kind == "per-band":
        return rng.uniform(0.2, 1.0, (num_bands, height, width)) * (rng.random((num_bands, height, width)) < 0.8)
    if kind == "dark-column":
        mask = rng.uniform(0.2, 1.0, (height, width))
        mask[:, 0] = 0.0
        return mask
    raise ValueError(f"no such mask: {kind}")


@dataclass(frozen=True)
class Case:
    """A small camera: C, H, W, the displacement of each band, and the kind of its mask."""

    size: tuple[int, int, int]
    shifts: tuple[int, ...]
    kind: str

    @property
    def mask(self) -> np.ndarray:
        return make_mask(self.kind, *self.size)


@st.composite
def small_cameras(draw: st.DrawFn) -> Case:
    """One band, odd, even, not square; steps of any sign with an offset, or shifts in any order, repeated, apart."""
    num_bands = draw(st.integers(1, 5))
    step, first = draw(st.integers(-2, 2)), draw(st.integers(-3, 7))
    even = tuple(first + step * c for c in range(num_bands))
    shifts = draw(st.just(even) | st.tuples(*[st.integers(-4, 30)] * num_bands))
    return Case((num_bands, draw(st.integers(1, 5)), draw(st.integers(1, 6))), shifts, draw(st.sampled_from(MASKS)))


def moved(
    mask: np.ndarray, *, dx: float = 0.0, dy: float = 0.0, rotation: float = 0.0, scale: float = 1.0
) -> np.ndarray:
    """A mask (H, W) turned [degree, counterclockwise as displayed] and magnified about its center, then displaced."""
    turn = np.radians(rotation)
    inverse = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]) / scale
    center = (np.array(mask.shape) - 1) / 2
    offset = center - inverse @ (center + np.array([dy, dx]))
    found = ndimage.affine_transform(mask.astype(np.float64), inverse, offset, order=5, cval=mask.mean())
    return found.clip(mask.min(), mask.max()).astype(np.float32)


def write_h5(path: Path, attributes: dict[str, object] | None = None, **datasets: object) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
        file.attrs.update(attributes or {})
    return path


def differences(x: Tensor) -> Tensor:
    """D x, (2, ..., H, W): forward differences along width, then height."""
    return torch.stack([F.pad(x.diff(dim=-1), (0, 1)), F.pad(x.diff(dim=-2), (0, 0, 0, 1))])


def tv(x: Tensor) -> Tensor:
    return differences(x).square().sum(0).sqrt().sum()


def tv_prox(v: Tensor, weight: float | Tensor, *, num_iters: int, dual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`tv_steps` on copies: u, and the dual to go on from."""
    u, q = v.clone(), v.new_zeros((2, *v.shape)) if dual is None else dual.clone()
    return u, tv_steps(u, torch.as_tensor(weight, dtype=v.dtype), q, None, num_iters=num_iters)[0]


def shrink(x: Tensor, k: int) -> Tensor:
    """A denoiser that is no projection, depends on k, and moves light between pixels."""
    soft = x.sign() * (x.abs() - 0.02).clamp(min=0)
    return soft + (0.2 / (k + 1)) * (soft.roll(1, -1) - soft)


class Plain(Camera):
    """The same camera as a stranger would write it: forward and adjoint only."""

    def __init__(self, A: CASSI) -> None:
        self.A, self.dtype = A, A.dtype

    @property
    def cube_shape(self):
        return self.A.cube_shape

    @property
    def measurement_shape(self):
        return self.A.measurement_shape

    def forward(self, x):
        return self.A.forward(x)

    def adjoint(self, y):
        return self.A.adjoint(y)


def camera(size=(3, 5, 4), shifts=(0, 1, 2), kind="grey", weighted=False, dtype=F64) -> tuple[CASSI, np.ndarray]:
    """An operator and its dense matrix."""
    mask = make_mask(kind, *size)
    weights = None
    if weighted:
        rng = np.random.default_rng(11)
        shape = (size[1], oracle.detector_columns(size[2], shifts))
        weights = rng.uniform(0.5, 2.0, shape) * (rng.random(shape) < 0.8)
    A = CASSI(torch.as_tensor(mask), shifts, None if weights is None else torch.as_tensor(weights)).to(dtype=dtype)
    return A, oracle.matrix(mask, shifts, weights)


def scene(A: CASSI, seed: int = 0) -> torch.Tensor:
    """A cube of flat patches whose brightness varies over the bands."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.zeros(A.cube_shape, dtype=A.dtype)
    for _ in range(4):
        i, j = (int(torch.randint(0, n, (), generator=generator)) for n in (A.height, A.width))
        x[:, i:, j:] = torch.rand(A.num_bands, 1, 1, generator=generator, dtype=A.dtype)
    return x


def two_squares() -> torch.Tensor:
    """(4, 24, 20), on a flat ground, of different spectra."""
    x = torch.full((4, 24, 20), 0.2)
    x[:, 4:14, 3:12] = torch.tensor([0.9, 0.7, 0.4, 0.2])[:, None, None]
    x[:, 12:21, 9:18] = torch.tensor([0.1, 0.3, 0.6, 0.8])[:, None, None]
    return x


def noisy(A: CASSI, seed: int = 0) -> torch.Tensor:
    noise = torch.randn(A.measurement_shape, generator=torch.Generator().manual_seed(seed + 1), dtype=A.dtype)
    y = A.forward(scene(A, seed)) + 0.05 * noise
    return y if A.weights is None else y * (A.weights != 0)

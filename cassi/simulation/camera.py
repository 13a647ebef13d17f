"""Simulated measurements: coded apertures, and a camera that counts electrons."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from cassi.kernels.caller import undisturbed
from cassi.kernels.images import displace, displacement_matrix
from cassi.optics.detector import Snapshot, detect
from cassi.optics.multi_shot import MultiShot
from cassi.optics.single_disperser import CASSI
from cassi.photograph.similarity import Similarity

MaskKind = Literal["binary", "grey"]


@undisturbed
def simulate(
    cube: Tensor, mask: Tensor, shifts: Sequence[int], *, shots: int = 1, full_well: float | None = None,
    read_noise: float = 0.0, bit_depth: int | None = None, generator: torch.Generator | None = None,
) -> Snapshot:  # fmt: skip
    """Image a cube through a coded aperture and a disperser: `detect(Phi x)`, (..., H, W') or (..., K, H, W').

    The cube is (..., C, H, W) >= 0 and determines dtype and device of the result. The mask is (H, W) or (C, H, W), or
    one for each of K `shots`, (K, ...); `shifts` [pixel]. Other arguments as for `detect`; without them the result is
    exact.

    Raises:
        ValueError: wrong shapes (see `CASSI`) or an impossible detector (see `detect`).
    """
    masks = mask.to(cube)
    if shots == 1:
        y = CASSI(masks, tuple(shifts)).forward(cube)
    else:
        y = MultiShot(tuple(CASSI(mask, tuple(shifts)) for mask in masks)).forward(cube)
    return detect(y, full_well=full_well, read_noise=read_noise, bit_depth=bit_depth, generator=generator)


def side_photograph(
    cube: Tensor, response: Tensor, *, size: tuple[int, int] | None = None, pose: Similarity = Similarity(1.0),
    full_well: float | None = None, read_noise: float = 0.0, generator: torch.Generator | None = None,
) -> Tensor:  # fmt: skip
    """Photograph a cube: s_k = sum_c R_kc x_c, on another grid, (h, w, K), with brightest value 1.

    Edge pixels of the scene are replicated beyond its border.

    The cube is x (C, H, W) >= 0, the response R (K, C) >= 0, and the picture (h, w) = `size`, by default the size of
    the scene times the scale; `pose` places the scene in it. Other arguments as for `detect`.
    """
    scene = torch.einsum("kc,chw->khw", response.to(cube), cube)
    if size is None:
        size = round(cube.shape[-2] * pose.scale), round(cube.shape[-1] * pose.scale)
    picture, _ = pose.inverse.sample(scene.double(), size, spline=True)
    shot = detect(picture.clamp(min=0), full_well=full_well, read_noise=read_noise, generator=generator).y
    return (shot / shot.max()).permute(1, 2, 0).contiguous().to(cube)


def move_scene(cube: Tensor, frames: int, speed: float) -> Tensor:
    """A cube (C, H, W) in uniform motion, `speed` pixels per frame, at 30 degrees to its rows: (T, C, H, W).

    By cubic interpolation, mirrored at the border.

    Raises:
        ValueError: the scene would move by half its size.
    """
    down, right = speed * math.sin(math.radians(30)), speed * math.cos(math.radians(30))
    border = math.ceil(abs(speed) * frames) + 2
    height, width = cube.shape[-2:]
    if border >= min(height, width) / 2:
        what = f"{frames} frames of {speed:g} px move the scene out of its {height} x {width} px"
        raise ValueError(f"{what}; give fewer frames or a slower motion")
    wide = torch.nn.functional.pad(cube, (border,) * 4, mode="reflect")
    moved = []
    for t in range(frames):
        v = cube.new_tensor([down * t, right * t]).view(2, 1, 1).expand(2, *wide.shape[-2:])
        moved.append(displace(wide, displacement_matrix(v))[..., border:-border, border:-border].clamp(min=0))
    return torch.stack(moved)


def video_of(cube: Tensor, speed: float) -> Tensor:
    """A grey film (C, H, W) of as many frames as the cube has bands: its mean over the bands, which moves evenly."""
    return move_scene(cube.mean(0, keepdim=True), len(cube), speed)[:, 0]


def stack_masks(masks: Sequence[Tensor]) -> Tensor:
    """The masks (H, W) of several shots as (K, H, W)."""
    return torch.stack(tuple(masks))


@undisturbed
def random_mask(
    height: int, width: int, *, kind: MaskKind = "binary", transmission: float = 0.5, generator: torch.Generator
) -> Tensor:
    """Draw a coded aperture, (H, W) float32 in [0, 1].

    - ``"binary"``: each element is open with probability t, independently (the usual lithographic mask);
    - ``"grey"``: u^((1 - t) / t) with u uniform in (0, 1): independent transmissions in [0, 1] of mean t, uniform at
      t = 1/2 (a printed film, or a blurred binary mask).

    The transmission t is in (0, 1); the generator is on the CPU.

    Raises:
        ValueError: a size below 1 or transmission outside (0, 1).
    """
    if height < 1 or width < 1:
        raise ValueError(f"a mask needs at least 1 x 1 elements, got {height} x {width}")
    if not 0 < transmission < 1:
        raise ValueError(f"transmission must lie between 0 and 1, got {transmission}: it is a mean over elements")
    drawn = torch.rand(height, width, dtype=torch.float32, generator=generator)
    return (drawn < transmission).float() if kind == "binary" else drawn ** ((1 - transmission) / transmission)

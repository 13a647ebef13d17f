"""Batches of spectral scenes to train with, made on the device from photographs, measured spectra and cubes.

A scene made of a photograph has its shapes and colors, and of each color several spectra: reflectances rho_jm that look
alike, in shares that vary from pixel to pixel,

    x(lambda) = light(lambda) [ Y shading sum_j s_j ((1 - b_j) rho_j1 + b_j rho_j2)(lambda) + gloss ]

with Y the brightness of the photograph, s_j the soft shares of its colors, and b_j fields of texture: of half of the
colors rho_j2 is a metamer of rho_j1, which has the same color, so that only the snapshot tells one from the other.
Wyszecki's metameric blacks make them: rho_2 = rho_1 + (1 - P)(q - rho_1), P the projection onto what three color
channels see (Finlayson & Morovic, JOSA A 22 (2005)).
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.photograph.picture import FORMATS
from cassi.simulation.scene import procedural_scene
from training.chance import Chance, standardised

WAVELENGTHS = np.arange(400.0, 701.0, 10.0)  # of all scenes here [nm]
BANDS = len(WAVELENGTHS)
# Not trained with, so that constants and checkpoints can be chosen on them. The two faces are of one person.
TEST_SCENES = ("beads", "egyptian_statue", "face", "paints", "photo_and_face", "pompoms")
MEASURED_SHARE = 0.5  # of scenes that are cut from measured cubes, where there are any
PAINTED_SHARE = 0.1  # of scenes that are cut from painted still lifes
PAINTED, PAINTED_SIDE = 48, 256  # how many there are, and their side [pixel]
DARK = 0.02  # the brightest radiance of a black corner, in place of which another is cut
STRING_SHARE, GROUND_SHARE, GLOSS_SHARE, SHADING_SHARE, LAMP_SHARE = 0.15, 0.2, 0.3, 0.5, 0.16
METAMERS = 0.5  # share of colors that have some
SINGLE = 0.5  # share of colors that are one reflectance, as paint and dye are
WITHIN = 0.35  # share of calls in which colors vary within one share, too
CHART_SHARE, CHART_COLORS, CHART_CELLS = 0.12, 48, (4, 40)  # of scenes; colors of a chart, sides of a patch [pixel]
VARIED_SHARE = 0.5  # of scenes in which the spectrum of a color varies
SCALES = 0.3, 0.5, 0.7, 1, 1.5  # pixels of a photograph to one of a scene; cameras blur more than photographs are sharp


class Pictures:
    """Pictures of any sizes in one vector, of which pieces are cut many at a time.

    Args:
        pictures: (channels, H, W) uint8 each.
    """

    def __init__(self, pictures: Sequence[np.ndarray], device: torch.device) -> None:
        self.channels = pictures[0].shape[0]
        self.smallest = min(min(picture.shape[1:]) for picture in pictures)
        self.values = torch.from_numpy(np.concatenate([picture.reshape(-1) for picture in pictures])).to(device)
        sizes = torch.tensor([picture.shape for picture in pictures], device=device)
        self.heights, self.widths = sizes[:, 1], sizes[:, 2]
        ends = (sizes.prod(1)).cumsum(0)
        self.starts = ends - sizes.prod(1)

    def __len__(self) -> int:
        return len(self.starts)

    def cut(self, chance: Chance, count: int, height: int, width: int) -> Tensor:
        """(count, channels, height, width) uint8: pieces at random places, turned and mirrored at random.

        Of pictures that are smaller the border is repeated.
        """
        n = chance.integers(len(self), count)
        rows, columns = torch.arange(height, device=n.device), torch.arange(width, device=n.device)
        flip = chance.uniform(2, count, 1) < 0.5
        turned = (chance.uniform(count) < 0.5)[:, None]
        i = torch.where(flip[0], height - 1 - rows, rows)
        j = torch.where(flip[1], width - 1 - columns, columns)
        H, W = self.heights[n][:, None], self.widths[n][:, None]
        room_i, room_j = torch.where(turned, W, H) - height, torch.where(turned, H, W) - width
        i = i + (chance.uniform(count, 1) * (room_i + 1)).long().clamp(min=0)
        j = j + (chance.uniform(count, 1) * (room_j + 1)).long().clamp(min=0)
        i, j = torch.minimum(i, torch.where(turned, W, H) - 1), torch.minimum(j, torch.where(turned, H, W) - 1)
        place = torch.where(turned, i, i * W)[:, :, None] + torch.where(turned, j * W, j)[:, None, :]
        channel = torch.arange(self.channels, device=n.device).view(1, -1, 1, 1) * (H * W)[..., None, None]
        return self.values[(self.starts[n].view(-1, 1, 1, 1) + channel) + place[:, None]]


@dataclass(frozen=True, eq=False)
class Scenes:
    """What scenes are made of.

    Attributes:
        photographs: linear once (v / 255)^2.2, 3 channels.
        reflectances: (N, 31), >= 0.
        lamps: (N, 31), of mean 1.
        painted: still lifes, linear once (v / 255)^2, 31 channels.
        measured: cubes of the same kind; None where only free data is used.
    """

    photographs: Pictures
    reflectances: Tensor
    lamps: Tensor
    painted: Pictures
    measured: Pictures | None = None

    def draw(self, chance: Chance, count: int, height: int, width: int) -> Tensor:
        """Scenes (count, 31, height, width) float32 >= 0, of maximum 1."""
        shares = {"painted": PAINTED_SHARE, "measured": 0.0 if self.measured is None else MEASURED_SHARE}
        kinds = chance.rng.choice(3, count, p=[1 - sum(shares.values()), *shares.values()])
        counts = [int((kinds == kind).sum()) for kind in range(3)]
        parts = [self.made(chance, counts[0], height, width)] if counts[0] else []
        for cubes, n in zip((self.painted, self.measured), counts[1:], strict=True):
            if n and cubes is not None:
                parts.append(self.cut(chance, cubes, n, height, width))
        x = torch.cat(parts)
        x = self._with_strings(chance, self._with_charts(chance, x))
        return x / x.amax((1, 2, 3), keepdim=True).clamp(min=1e-6)

    def cut(self, chance: Chance, cubes: Pictures, count: int, height: int, width: int) -> Tensor:
        """Pieces of cubes, at one of several scales; what is black is cut once more, and then lit."""
        scale = min(chance.one_of([1, 1, 1.5, 2]), max(1.0, cubes.smallest / max(height, width)))
        size = math.ceil(height * scale), math.ceil(width * scale)
        x, again = ((cubes.cut(chance, count, *size).float() / 255).square() for _ in range(2))
        x = torch.where(x.amax((1, 2, 3), keepdim=True) > DARK, x, again)
        x = x + (x.amax((1, 2, 3), keepdim=True) <= DARK) * DARK
        if scale == 1:
            return x
        if scale == 2 and chance.happens(0.4):  # without the low-pass that a scale asks for
            return x[..., ::2, ::2][..., :height, :width]
        return F.interpolate(x, (height, width), mode="bilinear", antialias=True, align_corners=False)

    def made(self, chance: Chance, count: int, height: int, width: int) -> Tensor:
        """Photographs with spectra, see above."""
        rgb = self._photographs(chance, count, height, width)
        brightness = rgb.mean(1, keepdim=True)
        shares, centers = soft_colors(chance, rgb / brightness)
        first, second = self._spectra(chance, centers)
        texture = self._textures(chance, brightness)
        pick = chance.integers(texture.shape[1], count, shares.shape[1])
        slope = torch.exp(chance.uniform(*pick.shape, low=math.log(0.7), high=math.log(20)))[..., None, None]
        slope = slope * chance.flags(VARIED_SHARE, count)
        middle = chance.normal(*pick.shape)[..., None, None]
        b = torch.sigmoid(slope * (texture.gather(1, pick[..., None, None].expand_as(shares)) - middle))
        weights = torch.cat([shares * (1 - b), shares * b], 1).flatten(2)
        x = (torch.cat([first, second], 1).mT @ weights).view(count, BANDS, height, width)
        if chance.happens(WITHIN):
            eye = sensitivities(x.device)
            lacks = rgb / brightness - torch.einsum("rc,nchw->nrhw", eye, x)
            x = (x + torch.einsum("cr,nrhw->nchw", inverse_sensitivities(x.device), lacks)).clamp(min=0.02)
        x = self._on_ground(chance, x * brightness)
        shading = torch.exp(0.6 * chance.flags(SHADING_SHARE, count) * chance.field(count, 1, height, width, 4))
        gloss = (brightness - chance.number(0.4, 0.8) * brightness.amax((2, 3), keepdim=True)).clamp(min=0)
        gloss = gloss * chance.flags(GLOSS_SHARE, count) * chance.uniform(count, 1, 1, 1, high=3.0)
        return (x * shading + gloss) * self._light(chance, count)

    def _photographs(self, chance: Chance, count: int, height: int, width: int) -> Tensor:
        """(count, 3, height, width), linear, > 0."""
        scale = chance.one_of(SCALES)
        size = round(height * scale), round(width * scale)
        rgb = self.photographs.cut(chance, count, *size).float() / 255
        if scale != 1:
            rgb = F.interpolate(rgb, (height, width), mode="bilinear", antialias=True, align_corners=False)
        steep = chance.uniform(count, 1, 1, 1, low=1.6, high=2.8)  # dark grounds, as spectral scenes often have
        return rgb.clamp(0, 1) ** steep + 2e-3

    def _spectra(self, chance: Chance, centers: Tensor) -> tuple[Tensor, Tensor]:
        """Two spectra (N, J, 31) of mean 1 for each color (N, J, 3): one reflectance twice, or mixtures or metamers."""
        count, J, _ = centers.shape
        subset = chance.integers(len(self.reflectances), chance.one_of([60, 300, 1500]))
        spectra = self.reflectances[subset]
        spectra = spectra / spectra.mean(1, keepdim=True)
        eye = sensitivities(spectra.device)
        seen = spectra @ eye.T
        seen = seen / seen.mean(1, keepdim=True)
        nearest = (torch.cdist(centers, seen) + 0.05 * chance.uniform(count, J, len(seen))).topk(6, largest=False)[1]
        pair = []
        for part in (nearest[..., :3], nearest[..., 3:]):
            shares = -(torch.log(chance.uniform(count, J, 3, low=1e-6)) ** 2)
            shares = shares / shares.sum(-1, keepdim=True)
            pair.append((spectra[part] * shares[..., None]).sum(-2))
        first, second = pair
        other = spectra[chance.integers(len(spectra), count, J)]
        black = (other - first) @ (torch.eye(BANDS, device=eye.device) - inverse_sensitivities(eye.device) @ eye).T
        metamer = (first + chance.uniform(count, J, 1, low=0.5, high=1.5) * black).clamp(min=0.02)
        second = torch.where(chance.uniform(count, J, 1) < METAMERS, metamer, second)
        one, single = spectra[nearest[..., 0]], chance.uniform(count, J, 1) < SINGLE
        return torch.where(single, one, first), torch.where(single, one, second)

    def _textures(self, chance: Chance, brightness: Tensor) -> Tensor:
        """(N, 4, H, W): other photographs, their sharp parts, and smooth fields, in units of standard deviation."""
        other = brightness.roll(1, 0).flip(-1).log()
        soft = F.avg_pool2d(other, 9, 1, 4, count_include_pad=False)
        smooth = [chance.field(len(other), 1, *other.shape[2:], cells) for cells in (4, 16)]
        return torch.cat([standardised(soft), standardised(other - soft), *smooth], 1)

    def _on_ground(self, chance: Chance, x: Tensor) -> Tensor:
        """Some scenes with a plain ground of one spectrum around their objects."""
        count, _, height, width = x.shape
        spectrum = self.reflectances[chance.integers(len(self.reflectances), count)]
        spectrum = spectrum / spectrum.mean(1, keepdim=True)
        level = torch.exp(chance.uniform(count, 1, 1, 1, low=math.log(0.003), high=math.log(0.5)))
        ground = level * spectrum[..., None, None] * torch.exp(0.15 * chance.field(count, 1, height, width, 2))
        share = torch.sigmoid(40 * (chance.field(count, 1, height, width, 6) - 0.3))
        return x + chance.flags(GROUND_SHARE, count) * share * (ground - x)

    def _light(self, chance: Chance, count: int) -> Tensor:
        """(count, 31, 1, 1): that of a measured lamp, or white; lines of lamps are no wider than they are."""
        lamp = self.lamps[chance.integers(len(self.lamps), count)]
        return torch.where(chance.uniform(count, 1) < LAMP_SHARE, lamp, 1.0)[..., None, None]

    def _with_charts(self, chance: Chance, x: Tensor) -> Tensor:
        """Some scenes with a chart: flat patches of single reflectances side by side, often with a dark frame."""
        count, _, h, w = x.shape
        device = x.device

        def number(low: float, high: float) -> Tensor:
            return chance.uniform(count, 1, 1, low=low, high=high)

        def cells(length: int, axis: int) -> tuple[Tensor, Tensor]:
            """Of each row or column the number of its patch, and whether it lies in one."""
            place = torch.arange(length, device=device).view((-1, 1) if axis else (1, -1))
            low, high = (math.log(side) for side in CHART_CELLS)
            side, frame = torch.exp(number(low, high)), number(-0.15, 0.25).clamp(min=0)
            extent, start = number(0.3, 1.5) * length, number(-0.3, 0.7) * length
            along = (place - start) / side
            inside = (place >= start) & (place < start + extent) & (along - along.floor() >= frame)
            return along.floor().long(), inside

        (row, in_row), (column, in_column) = cells(h, 1), cells(w, 0)
        patch = (7 * row + 13 * column) % CHART_COLORS  # neighbors differ
        colors = self.reflectances[chance.integers(len(self.reflectances), count, CHART_COLORS)]
        brightest = x.amax((1, 2, 3), keepdim=True)
        white = colors.amax((1, 2), keepdim=True) * number(0.7, 3)  # patches are seldom the brightest of a scene
        colors = (colors / white).mT.flatten(0, 1)
        chart = colors.gather(1, patch.flatten(1).repeat_interleave(BANDS, 0)).view(x.shape) * brightest
        share = (in_row & in_column)[:, None] * chance.flags(CHART_SHARE, count)
        return x + share * (chart - x)

    def _with_strings(self, chance: Chance, x: Tensor) -> Tensor:
        """Some scenes with straight strings across, 1 to 4 pixels wide, of other colors: TV smears them."""
        count, _, h, w = x.shape
        has = chance.flags(STRING_SHARE, count)
        i = torch.arange(h, device=x.device).view(-1, 1)
        j = torch.arange(w, device=x.device)
        brightest = x.amax((1, 2, 3), keepdim=True)

        def number(low: float, high: float) -> Tensor:
            return chance.uniform(count, 1, 1, 1, low=low, high=high)

        for _ in range(int(chance.rng.integers(1, 6))):
            angle = 0.5 * chance.normal(count, 1, 1, 1) + math.pi / 2 * chance.flags(1 / 3, count)
            di, dj = i - number(0, h), j - number(0, w)
            aside = (dj * angle.cos() + di * angle.sin()).abs()
            along = (di * angle.cos() - dj * angle.sin()).abs()
            share = (number(1, 4) / 2 + 0.5 - aside).clamp(0, 1) * (number(4, 80) - along).clamp(0, 1)
            color = self.reflectances[chance.integers(len(self.reflectances), count)]
            color = (color / color.amax(1, keepdim=True))[..., None, None]
            x = x + has * share * (number(0.1, 1) * brightest * color - x)
        return x


def soft_colors(chance: Chance, chroma: Tensor) -> tuple[Tensor, Tensor]:
    """Soft shares (N, J, H, W), of sum 1, of J = 4 to 12 colors, and the colors (N, J, 3), by soft k-means."""
    count, _, height, width = chroma.shape
    pixels = chroma.flatten(2).mT
    J, width_of_color = int(chance.rng.integers(4, 13)), chance.one_of([0.005, 0.02, 0.06])
    place = chance.integers(height * width, count, J)
    centers = pixels.gather(1, place[..., None].expand(-1, -1, 3))
    shares = torch.empty(0)
    for step in range(3):
        squares = torch.cdist(pixels, centers).square()
        shares = torch.softmax(-squares / width_of_color, 2)
        if step < 2:
            centers = (shares.mT @ pixels) / shares.sum(1).clamp(min=1e-6)[..., None]
    return shares.mT.reshape(count, J, height, width), centers


@functools.cache
def sensitivities(device: torch.device) -> Tensor:
    """(3, 31): red, green and blue of some camera, each of sum 1."""
    bells = np.stack([np.exp(-0.5 * ((WAVELENGTHS - m) / w) ** 2) for m, w in ((610, 40), (545, 40), (450, 30))])
    return torch.from_numpy(bells / bells.sum(1, keepdims=True)).float().to(device)


@functools.cache
def inverse_sensitivities(device: torch.device) -> Tensor:
    """(31, 3), the pseudo-inverse of `sensitivities`: on the CPU, as it is found once and a GPU would be waited for."""
    return torch.linalg.pinv(sensitivities(torch.device("cpu"))).to(device)


def load_scenes(
    folder: Path, device: torch.device, *, measured: bool = False, seed: int = 0, limit: int | None = None
) -> Scenes:
    """The scenes of a folder with free/photographs/*.jpg and free/spectra.h5, and where `measured` cave_train/*.h5.

    Args:
        limit: of photographs and painted scenes, for a quick try.

    Raises:
        FileNotFoundError: no photographs, spectra or cubes there.
        ValueError: a file without spectra or a cube, or with one of another kind.
    """
    names = sorted((folder / "free" / "photographs").glob("*.jpg"))
    names = names[:: max(1, len(names) // limit)] if limit else names
    if not names or not (folder / "free" / "spectra.h5").exists():
        raise FileNotFoundError(f"{folder / 'free'} holds no scenes: expected photographs/*.jpg and spectra.h5")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        photographs = list(pool.map(_read_photograph, names))
    reflectances, lamps = (_read_spectra(folder / "free" / "spectra.h5", kind) for kind in ("reflectance", "light"))
    generator = torch.Generator().manual_seed(seed)
    nm = torch.from_numpy(WAVELENGTHS)
    sides = [PAINTED_SIDE] * min(PAINTED, limit or PAINTED)
    painted = [_encoded(procedural_scene(side, side, nm, generator=generator).numpy()) for side in sides]
    cubes = Pictures(read_cubes(folder / "cave_train"), device) if measured else None
    return Scenes(
        Pictures(photographs, device), reflectances.to(device), (lamps / lamps.mean(1, keepdim=True)).to(device),
        Pictures(painted, device), cubes,
    )  # fmt: skip


def _read_photograph(path: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(path, formats=FORMATS) as file:
        return np.ascontiguousarray(np.asarray(file.convert("RGB"))[2:-2, 2:-2].transpose(2, 0, 1))


def _read_spectra(path: Path, kind: str) -> Tensor:
    """(N, 31) of all sets of a kind, without those that are dark or not finite."""
    with h5py.File(path) as file:
        if kind not in file:
            raise ValueError(f"{path} holds no `{kind}`, expected groups of spectra (N, {BANDS})")
        values = np.concatenate([table[()] for table in file[kind].values()])
    if values.ndim != 2 or values.shape[1] != BANDS:
        raise ValueError(f"{path}: `{kind}` must be (N, {BANDS}), got {values.shape}")
    values = values[np.isfinite(values).all(1) & (values.max(1) > 0.02)]
    return torch.from_numpy(np.clip(values, 1e-4, None)).float()


def _encoded(cube: np.ndarray) -> np.ndarray:
    """Square roots as bytes, as measured cubes are stored."""
    return np.rint(255 * np.sqrt(np.clip(cube, 0, 1))).astype(np.uint8)


def read_cubes(folder: Path, names: Sequence[str] | None = None) -> list[np.ndarray]:
    """Measured cubes (31, H, W) uint8, square roots of radiances: all but those that are held out, or these.

    Raises:
        FileNotFoundError: none there.
        ValueError: a file without a cube, or with one of another kind.
    """
    files = [
        f for f in sorted(folder.glob("*.h5")) if (f.stem not in TEST_SCENES if names is None else f.stem in names)
    ]
    if not files:
        raise FileNotFoundError(f"{folder} holds no cubes to train with (*.h5 with `cube_sqrt`)")
    cubes = []
    for name in files:
        if not h5py.is_hdf5(name):
            raise ValueError(f"{name} is no HDF5 file, or damaged")
        with h5py.File(name) as file:
            if "cube_sqrt" not in file:
                raise ValueError(f"{name} holds no `cube_sqrt`; give scenes as scripts/train.py --help describes them")
            cube = file["cube_sqrt"][()]
        if cube.dtype != np.uint8 or cube.ndim != 3 or len(cube) != BANDS or (cube.max() / 255) ** 2 <= DARK:
            raise ValueError(
                f"{name}: `cube_sqrt` must be ({BANDS}, H, W) uint8 and not dark, the square root of the radiance, got "
                f"{cube.shape} {cube.dtype} of at most {cube.max():g}"
            )
        cubes.append(cube)
    return cubes

"""Pieces of spectral scenes to train with: measured cubes, and cubes made of photographs and measured reflectances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch
import torch.nn.functional as F

WAVELENGTHS = np.arange(400.0, 701.0, 10.0)  # of all scenes here [nm]
# Not trained with, so that constants and checkpoints can be chosen on them. The two faces are of one person.
HELD_OUT = ("beads", "egyptian_statue", "face", "paints", "photo_and_face", "pompoms")
CUBE_SHARE = 0.65  # of pieces cut from measured cubes
DARK = 0.02  # the largest radiance of a black corner, of which no piece is cut
STRING_SHARE = 0.12  # of pieces with strings across them


@dataclass(frozen=True)
class Scenes:
    """What pieces are cut from.

    Attributes:
        cubes: (31, H, W) uint8, square roots of radiances.
        photographs: files of color photographs.
        reflectances: (N, 31).
    """

    cubes: tuple[np.ndarray, ...]
    photographs: tuple[Path, ...]
    reflectances: np.ndarray

    def check_size(self, height: int, width: int) -> None:
        """Raise ValueError for pieces that do not fit into a cube."""
        smallest = min(min(cube.shape[1:]) for cube in self.cubes)
        if smallest < max(height, width):
            raise ValueError(
                f"pieces of {height} x {width} pixels do not fit into a scene of {smallest} pixels; take smaller ones"
            )

    def piece(self, rng: np.random.Generator, height: int, width: int) -> np.ndarray:
        """One piece (31, height, width) float32 >= 0, of maximum 1."""
        while True:
            made = rng.random() >= CUBE_SHARE and len(self.photographs) > 0
            x = self._made(rng, height, width) if made else self._cut(rng, height, width)
            if x.max() > DARK:
                x = x / x.max()
                return self._strung(rng, x) if len(self.reflectances) and rng.random() < STRING_SHARE else x

    def _strung(self, rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
        """With straight strings, 1 to 4 pixels wide, of other colors: total variation smears them."""
        h, w = x.shape[1:]
        i, j = np.mgrid[:h, :w].astype(np.float32)
        for _ in range(rng.integers(1, 6)):
            angle = rng.normal(0, 0.5) + rng.choice([0, 0, np.pi / 2])
            di, dj = i - rng.uniform(0, h), j - rng.uniform(0, w)
            aside = np.abs(dj * math.cos(angle) + di * math.sin(angle))
            along = np.abs(di * math.cos(angle) - dj * math.sin(angle))
            share = np.clip(rng.uniform(1, 4) / 2 + 0.5 - aside, 0, 1) * np.clip(rng.uniform(4, 80) - along, 0, 1)
            color = self.reflectances[rng.integers(len(self.reflectances))]
            x = x + share * (rng.uniform(0.1, 1) * color[:, None, None] / max(color.max(), 1e-6) - x)
        return (x / x.max()).astype(np.float32)

    def _cut(self, rng: np.random.Generator, height: int, width: int) -> np.ndarray:
        """Of a cube at a random place, orientation and scale; sometimes without the low-pass that a scale asks for."""
        cube = self.cubes[rng.integers(len(self.cubes))]
        largest = min(2.5, min(cube.shape[1:]) / max(height, width))
        scale = min(float(rng.choice([1, 1, 1.5, 2, 2.5])), largest)
        h, w = math.ceil(height * scale), math.ceil(width * scale)
        turned = rng.random() < 0.5
        a, b = (w, h) if turned else (h, w)
        i, j = rng.integers(cube.shape[1] - a + 1), rng.integers(cube.shape[2] - b + 1)
        x = (cube[:, i : i + a, j : j + b].astype(np.float32) / 255) ** 2
        x = x.transpose(0, 2, 1) if turned else x
        x = x[:, :: rng.choice([1, -1]), :: rng.choice([1, -1])]
        if scale == 2 and rng.random() < 0.4:
            x = x[:, ::2, ::2]
        elif scale > 1:
            image = torch.from_numpy(np.ascontiguousarray(x))[None]
            x = F.interpolate(image, (height, width), mode="bilinear", antialias=True, align_corners=False)[0].numpy()
        return np.ascontiguousarray(x[:, :height, :width])

    def _made(self, rng: np.random.Generator, height: int, width: int) -> np.ndarray:
        """The brightness of a photograph, and for each of its colors a mixture of reflectances of like color."""
        from PIL import Image

        with Image.open(self.photographs[rng.integers(len(self.photographs))]) as file:
            photograph = file.convert("RGB")
        smaller = photograph.width * 3 // 4, photograph.height * 3 // 4
        if rng.random() < 0.5 and min(smaller) - 4 >= max(height, width):
            photograph = photograph.resize(smaller, Image.LANCZOS)
        rgb = np.rot90(np.asarray(photograph, np.float32)[2:-2, 2:-2] / 255, rng.integers(4))
        if min(rgb.shape[:2]) < max(height, width):
            return self._cut(rng, height, width)
        i, j = rng.integers(rgb.shape[0] - height + 1), rng.integers(rgb.shape[1] - width + 1)
        rgb = rgb[i : i + height, j : j + width] ** 2.2 + 1e-3
        brightness = rgb.mean(-1)
        colors = (rgb / brightness[..., None]).reshape(-1, 3)
        centers = colors[rng.choice(len(colors), int(rng.integers(4, 13)), replace=False)]
        for _ in range(4):  # k-means
            nearest = _squared_distances(colors, centers).argmin(1)
            for k in np.unique(nearest):
                centers[k] = colors[nearest == k].mean(0)
        distances = _squared_distances(colors, centers)
        shares = np.exp(-(distances - distances.min(1, keepdims=True)) / rng.choice([0.005, 0.02, 0.06]))
        shares /= shares.sum(1, keepdims=True)
        count = min(int(rng.choice([30, 150, 600])), len(self.reflectances))
        some = self.reflectances[rng.choice(len(self.reflectances), count, replace=False)]
        seen = some @ _rgb_sensitivities().T + 1e-4
        seen /= seen.mean(1, keepdims=True)
        spectra = []
        for center in centers:
            alike = some[np.argsort(((seen - center) ** 2).sum(1))[:3]]
            spectra.append(rng.dirichlet([0.5] * len(alike)) @ (alike / alike.mean(1, keepdims=True)))
        cube = (shares @ np.array(spectra)).T.reshape(-1, height, width) * brightness
        return np.ascontiguousarray(cube, np.float32)


def load_scenes(folder: Path, *, held_out: tuple[str, ...] = HELD_OUT) -> Scenes:
    """The scenes of a folder with cave_train/*.h5, and where they are there rgb_train/*.jpg and spectra/.

    Raises:
        FileNotFoundError: no cubes there, but those that are held out.
        ValueError: a file without a cube, or with one of another kind.
    """
    files = [f for f in sorted((folder / "cave_train").glob("*.h5")) if f.stem not in held_out]
    if not files:
        raise FileNotFoundError(f"{folder / 'cave_train'} holds no cubes to train with (*.h5 with `cube_sqrt`)")
    cubes = []
    for name in files:
        if not h5py.is_hdf5(name):
            raise ValueError(f"{name} is no HDF5 file, or damaged")
        with h5py.File(name) as file:
            if "cube_sqrt" not in file:
                raise ValueError(f"{name} holds no `cube_sqrt`; give scenes as scripts/train.py --help describes them")
            cube = file["cube_sqrt"][()]
        if cube.dtype != np.uint8 or cube.ndim != 3 or len(cube) != len(WAVELENGTHS) or (cube.max() / 255) ** 2 <= DARK:
            raise ValueError(
                f"{name}: `cube_sqrt` must be ({len(WAVELENGTHS)}, H, W) uint8 and not dark, the square root of the "
                f"radiance, got {cube.shape} {cube.dtype} of at most {cube.max():g}"
            )
        cubes.append(cube)
    spectra = folder / "spectra" / "sfu1995_400_700_10nm.npz"
    photographs = tuple(sorted((folder / "rgb_train").glob("*.jpg"))) if spectra.exists() else ()
    reflectances = np.clip(np.load(spectra)["reflectance"], 0, None) if spectra.exists() else np.ones((0, 31))
    return Scenes(tuple(cubes), photographs, reflectances)


def _squared_distances(colors: np.ndarray, centers: np.ndarray) -> np.ndarray:
    distances: np.ndarray = ((colors[:, None] - centers) ** 2).sum(-1)
    return distances


def _rgb_sensitivities() -> np.ndarray:
    """(3, 31): red, green and blue of some camera."""
    bells = np.stack([np.exp(-0.5 * ((WAVELENGTHS - m) / w) ** 2) for m, w in ((610, 40), (545, 40), (450, 30))])
    bells /= bells.sum(1, keepdims=True)
    return bells

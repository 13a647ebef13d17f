"""A painted still life with plausible spectra, for use without a camera or a data set."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels.caller import undisturbed

_FROM = torch.tensor([-0.55, -0.62, 0.56], dtype=torch.float32, device="cpu")  # the upper left, towards the viewer
_LIGHT = F.normalize(_FROM, dim=0)


@undisturbed
def procedural_scene(
    height: int, width: int, wavelengths: Tensor | Sequence[float], *, generator: torch.Generator
) -> Tensor:
    """Paint a still life: color chart, filter strip, star target, threads, fruit-like spheres, a plant, wood and cloth.

    Pigments are smooth reflectances: logistic edges, Gaussian bands, sums of both, narrow filters, and greys. A surface
    with reflectance rho and normal n under a lamp from direction l and a bluish skylight s has the radiance

        x(lambda) = rho(lambda) (0.85 max(n . l, 0) + 0.3 s(lambda)) + highlight,   clipped to [0, 1]

    Sizes scale with the shorter side, so that one seed gives nearly the same picture at any size. Pigments are defined
    for 380-1000 nm. The generator, on the CPU, draws arrangement, pigments and grain. The cube is (C, H, W), float32.

    Raises:
        ValueError: a size is below 1, or the wavelengths are not a list of finite numbers.
    """
    centers = torch.as_tensor(wavelengths, dtype=torch.float32)
    if height < 1 or width < 1:
        raise ValueError(f"a scene needs at least 1 x 1 pixels, got {height} x {width}")
    if centers.ndim != 1 or len(centers) == 0 or not torch.isfinite(centers).all():
        raise ValueError(f"wavelengths must be a list of finite numbers [nm], got {wavelengths}")
    canvas = _Canvas(height, width, centers, generator)
    _room(canvas)
    _threads(canvas)
    _chart(canvas)
    _star(canvas)
    _plant(canvas)
    _spheres(canvas)
    return canvas.cube.clamp_(0, 1)


class _Canvas:
    """The cube being painted, and its coordinates: x to the right, y down, in units of the shorter side."""

    def __init__(self, height: int, width: int, wavelengths: Tensor, generator: torch.Generator) -> None:
        self.wavelengths = wavelengths
        self.generator = generator
        self.pixel = 1 / min(height, width)
        self.right, self.bottom = width * self.pixel, height * self.pixel
        y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.float32) + 0.5 for n in (height, width)), indexing="ij")
        self.x, self.y = x * self.pixel, y * self.pixel
        self.cube = torch.zeros(len(wavelengths), height, width, dtype=torch.float32)
        self.sky = (1 + (550 - wavelengths) / 500).clamp(0.3, 1.6)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), dtype=torch.float32, generator=self.generator).item()

    def inside(self, distance: Tensor) -> Tensor:
        """Coverage of each pixel by the shape with this signed distance, negative inside; edges are two pixels wide."""
        ramp = (0.5 - distance / (2 * self.pixel)).clamp(0, 1)
        return ramp * ramp * (3 - 2 * ramp)

    def grain(self, size_x: float, size_y: float) -> Tensor:
        """Smooth Gaussian noise of unit variance with the given feature sizes."""
        height, width = self.x.shape
        spectrum = torch.fft.rfft2(torch.randn(height, width, dtype=torch.float32, generator=self.generator))
        fy = torch.fft.fftfreq(height, dtype=torch.float32)[:, None] / self.pixel
        fx = torch.fft.rfftfreq(width, dtype=torch.float32)[None, :] / self.pixel
        spectrum *= torch.exp(-2 * (math.pi**2) * ((fx * size_x) ** 2 + (fy * size_y) ** 2))
        spectrum[0, 0] = 0
        noise: Tensor = torch.fft.irfft2(spectrum, s=(height, width))
        return noise / noise.std().clamp(min=1e-6) if noise.numel() > 1 else noise

    def paint(
        self, coverage: Tensor, pigment: Tensor, *, second: Tensor | None = None, mix: Tensor | None = None,
        lit: Tensor | float = 0.7, highlight: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Paint a surface of `pigment`, or of `second` where `mix` is 1, lit by the fraction `lit` of the lamp."""
        rows, columns = coverage.any(dim=1).nonzero()[:, 0], coverage.any(dim=0).nonzero()[:, 0]
        if len(rows) == 0:
            return
        box = (slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1))
        part = coverage[box]
        lamp = torch.as_tensor(lit, dtype=torch.float32).expand_as(coverage)[box]
        for band, rho, sky, other in zip(
            self.cube, pigment, self.sky, pigment if second is None else second, strict=True
        ):
            surface = rho if mix is None else rho + (other - rho) * mix[box]
            light = surface * (0.85 * lamp + 0.3 * sky)
            if highlight is not None:
                light = light + highlight[box]
            band[box] = torch.lerp(band[box], light, part)

    def shade(self, shadow: Tensor) -> None:
        """Block the lamp where `shadow` is 1; the bluish skylight remains."""
        for band, sky in zip(self.cube, self.sky, strict=True):
            band *= 1 - shadow * (1 - 0.35 * sky).clamp(0, 1)

    # Reflectances, (C,)

    def step(self, edge: float, softness: float) -> Tensor:
        return torch.sigmoid((self.wavelengths - edge) / softness)

    def bump(self, center: float, sigma: float) -> Tensor:
        return torch.exp(-0.5 * ((self.wavelengths - center) / sigma) ** 2)

    def grey(self, level: float) -> Tensor:
        return level * (0.9 + 0.1 * self.step(415, 12))

    def pigments(self) -> list[Tensor]:
        """Eighteen colors: twelve around the hue circle from red to magenta, then six natural ones."""
        step, bump = self.step, self.bump
        return [
            0.04 + 0.72 * step(612, 9),
            0.05 + 0.74 * step(592, 10),
            0.05 + 0.78 * step(565, 12),
            0.05 + 0.80 * step(528, 14),
            0.04 + 0.62 * bump(560, 34) + 0.15 * step(600, 20),
            0.04 + 0.52 * bump(532, 28) + 0.10 * step(700, 15),
            0.04 + 0.55 * bump(508, 32),
            0.05 + 0.62 * bump(488, 38),
            0.05 + 0.58 * bump(466, 32) + 0.10 * step(690, 15),
            0.04 + 0.55 * bump(446, 26) + 0.15 * step(680, 18),
            0.05 + 0.42 * bump(438, 28) + 0.42 * step(640, 16),
            0.06 + 0.48 * bump(440, 32) + 0.68 * step(608, 12),
            0.20 + 0.22 * step(480, 30) + 0.36 * step(590, 22),
            0.06 + 0.15 * step(490, 40) + 0.22 * step(590, 28),
            0.05 + 0.16 * bump(552, 26) + 0.50 * step(705, 9),
            0.14 + 0.22 * bump(470, 60) + 0.10 * step(560, 40),
            0.28 + 0.30 * bump(520, 55),
            0.10 + 0.30 * step(505, 20) + 0.18 * step(585, 18),
        ]


def _room(c: _Canvas) -> None:
    """A wall in the back, a wooden table, and a checked cloth over its front."""
    everywhere = torch.ones_like(c.x)
    plaster = 1 + 0.02 * c.grain(0.004, 0.004) + 0.02 * c.grain(0.08, 0.08)
    falloff = torch.exp(-0.35 * ((c.x - 0.25 * c.right) ** 2 + (c.y - 0.2) ** 2))
    tint = c.uniform(0, 1)
    wall = 0.34 + 0.16 * tint * c.bump(480, 70) + 0.14 * (1 - tint) * c.step(540, 40)
    c.paint(everywhere, wall, lit=0.95 * plaster * falloff)

    edge = 0.62 * c.bottom
    rings = torch.sin(60 * c.y + 3 * c.grain(0.3, 0.02)) + 0.7 * c.grain(0.05, 0.003)
    c.paint(
        c.inside(edge - c.y),
        0.10 + 0.16 * c.step(520, 40) + 0.26 * c.step(600, 35),
        second=0.05 + 0.06 * c.step(530, 40) + 0.14 * c.step(610, 35),
        mix=(0.35 + 0.25 * rings).clamp(0, 1),
        lit=0.75 * falloff,
    )
    c.shade(0.25 * torch.exp(-(((c.y - edge).clamp(min=0) / 0.015) ** 2)) * (c.y > edge))

    hem = 0.77 * c.bottom + 0.05 * c.x + 0.008 * torch.sin(14 * c.x)
    cloth = c.inside(hem - c.y)
    depth = (c.y - hem).clamp(min=0)
    across = (c.x - 0.5 * c.right) / (1 + 1.2 * depth)  # threads run towards the viewer
    checks = 0.5 * _stripes(c, 48, across) + 0.5 * _stripes(c, 48, depth)
    folds = 1 + 0.12 * torch.sin(9 * across + 2) + 0.06 * c.grain(0.03, 0.06)
    weave = 1 + 0.06 * torch.sin(900 * across) * torch.sin(700 * depth)
    dyes = c.pigments()
    dye = dyes[(0, 5, 8, 9)[int(c.uniform(0, 4))]]
    c.paint(cloth, c.grey(0.72), second=dye, mix=checks, lit=0.8 * folds * weave * falloff)


def _threads(c: _Canvas) -> None:
    """A fan of thin colored threads, about two pixels wide at 256 px."""
    dyes = c.pigments()
    knot_x, knot_y = 0.86 * c.right, 0.50 * c.bottom
    for k in range(7):
        top = c.right * (0.79 + 0.20 * k / 6)
        slope = (knot_x - top) / knot_y
        distance = ((c.x - top) - slope * c.y).abs() / math.hypot(1, slope) - 0.0035
        c.paint(c.inside(torch.maximum(distance, c.y - knot_y)), dyes[(k * 5 + 3) % 12], lit=0.9)


def _chart(c: _Canvas) -> None:
    """Eighteen pigments and six greys in a black frame; below it a strip of narrow filters and a grey wedge."""
    left, top, size, gap = 0.05 * c.right, 0.05 * c.bottom, 0.066, 0.012
    pitch = size + gap
    frame = _box(c, left - gap, top - gap, left + 6 * pitch, top + 4 * pitch)
    c.shade(0.5 * _soft(_box(c, left, top, left + 6 * pitch + 0.012, top + 4 * pitch + 0.015)))
    c.paint(c.inside(frame), c.grey(0.035))
    patches = c.pigments() + [c.grey(level) for level in (0.9, 0.6, 0.36, 0.2, 0.09, 0.035)]
    for k, pigment in enumerate(patches):
        x, y = left + (k % 6) * pitch, top + (k // 6) * pitch
        c.paint(c.inside(_box(c, x, y, x + size, y + size)), pigment, lit=0.82)

    top += 4 * pitch + 0.03
    strip = _box(c, left - gap, top, left + 6 * pitch, top + 0.085)
    c.paint(c.inside(strip), c.grey(0.035))
    length = 6 * pitch - gap
    along = ((c.x - left) / length).clamp(0, 1)
    filters = c.inside(_box(c, left, top + 0.01, left + length, top + 0.05))
    passband = 435 + 235 * along
    for band, wavelength in zip(c.cube, c.wavelengths, strict=True):
        light = 0.02 + 0.75 * torch.exp(-0.5 * ((wavelength - passband) / 11) ** 2)
        band.lerp_(light, filters)
    wedge = c.inside(_box(c, left, top + 0.056, left + length, top + 0.075))
    c.paint(wedge, c.grey(0.03), second=c.grey(0.9), mix=along, lit=0.82)


def _star(c: _Canvas) -> None:
    """A Siemens star, which shows the resolution in every direction."""
    x, y = c.x - 0.655 * c.right, c.y - 0.155 * c.bottom
    radius, angle = torch.hypot(x, y), torch.atan2(y, x)
    card = _box(c, 0.655 * c.right - 0.1, 0.155 * c.bottom - 0.1, 0.655 * c.right + 0.1, 0.155 * c.bottom + 0.1)
    c.shade(0.5 * _soft(card + 0.004))
    c.paint(c.inside(card), c.grey(0.85), lit=0.8)
    # Signed distance to the nearest edge of the 12 black sectors: arc length from the border between black and white.
    sector = ((angle * 12 / math.pi + 0.5) % 2 - 1).abs() - 0.5
    spokes = c.inside(torch.maximum(sector * radius * math.pi / 12, radius - 0.088))
    c.paint(spokes, c.grey(0.04), lit=0.8)
    c.paint(c.inside(radius - 0.012), c.pigments()[0], lit=0.8)


def _plant(c: _Canvas) -> None:
    """Leaves with a red edge and pale veins, one flower, in a terracotta pot."""
    x0, rim = 0.83 * c.right, 0.60 * c.bottom
    dyes = c.pigments()
    down = ((c.y - rim) / 0.2).clamp(0, 1)
    half = 0.105 - 0.03 * down
    across = (c.x - x0) / half
    pot = torch.maximum((c.x - x0).abs() - half, torch.maximum(rim - c.y, c.y - rim - 0.2))
    c.shade(0.75 * _ellipse_shadow(c, x0 + 0.10, rim + 0.20, 0.17, 0.035))
    clay = 0.06 + 0.10 * c.step(540, 25) + 0.34 * c.step(592, 18)
    turned = (0.45 - 0.62 * across + 0.35 * (1 - across**2).clamp(min=0).sqrt()).clamp(0.03, 1)
    lip = 1 - 0.3 * torch.exp(-(((c.y - rim - 0.04) / 0.008) ** 2))
    c.paint(c.inside(pot), clay, lit=turned * lip * (1 + 0.04 * c.grain(0.006, 0.006)))

    order = [-78, 74, -52, 50, -27, 25, -2]
    for k, tilt in enumerate(order):
        angle = math.radians(tilt + c.uniform(-7, 7))
        length = c.uniform(0.24, 0.30) * (1 if abs(tilt) < 60 else 0.8)
        _leaf(c, x0, rim + 0.01, angle, length, yellowing=0.25 * (k == 1))
    head_x, head_y = x0 - 0.03 * c.uniform(-1, 1), rim - 0.31
    stem = (c.x - x0 - (head_x - x0) * (rim - c.y) / 0.31).abs() - 0.005
    c.paint(c.inside(torch.maximum(stem, torch.maximum(c.y - rim, head_y - c.y))), dyes[14], lit=0.6)
    petal = dyes[(11, 0, 3, 10)[int(c.uniform(0, 4))]]
    for k in range(7):
        angle = 2 * math.pi * k / 7 + 0.3
        u, v = _turn(c.x - head_x, c.y - head_y, angle)
        distance = (torch.hypot((u - 0.042) / 0.036, v / 0.02) - 1) * 0.02
        c.paint(c.inside(distance), petal, lit=(0.95 - 8 * (u - 0.03).abs() - 12 * v.abs()).clamp(0.35, 1))
    dome = torch.hypot(c.x - head_x, c.y - head_y) - 0.02
    c.paint(c.inside(dome), dyes[3], lit=(0.9 - 12 * (c.y - head_y)).clamp(0.4, 1))


def _leaf(c: _Canvas, x: float, y: float, angle: float, length: float, yellowing: float) -> None:
    u, v = _turn(c.x - x, c.y - y, angle - math.pi / 2)
    along = (u / length).clamp(0, 1)
    v = v + 0.12 * length * torch.sin(math.pi * along) * math.copysign(1, angle)
    half = 0.19 * length * torch.sin(math.pi * along**0.8).clamp(min=0) ** 0.9
    blade = torch.maximum(v.abs() - half, torch.maximum(-u, u - length))
    coverage = c.inside(blade)
    vein = torch.exp(-((v / 0.004) ** 2)) + 0.5 * torch.exp(
        -((torch.sin(math.pi * 9 * (along - 0.9 * v.abs() / length)) / 0.25) ** 2)
    )
    lit = (0.62 + 0.22 * torch.sign(v) - 0.5 * (along - 0.5) ** 2 + 0.9 * (0.5 * along)).clamp(0.15, 1)
    green = 0.04 + 0.17 * c.bump(550, 30) + yellowing * c.step(520, 15) + 0.5 * c.step(705, 9)
    pale = 0.07 + 0.30 * c.bump(556, 40) + yellowing * c.step(510, 15) + 0.4 * c.step(700, 10)
    c.shade(0.35 * _soft(blade + 0.004) * (1 - coverage))
    c.paint(coverage, green, second=pale, mix=vein.clamp(0, 1), lit=lit)


def _spheres(c: _Canvas) -> None:
    """Balls of saturated pigment with highlights and shadows; one is striped, one is mottled."""
    dyes = c.pigments()
    start = int(c.uniform(0, 12))
    places = [
        (0.36, 0.68, 0.070),
        (0.145, 0.745, 0.105),
        (0.555, 0.765, 0.092),
        (0.335, 0.875, 0.082),
        (0.70, 0.90, 0.06),
    ]
    for k, (fx, fy, radius) in enumerate(places):
        x, y = fx * c.right + c.uniform(-0.015, 0.015), fy * c.bottom + c.uniform(-0.01, 0.01)
        nx, ny = (c.x - x) / radius, (c.y - y) / radius
        nz = (1 - nx**2 - ny**2).clamp(min=0).sqrt()
        coverage = c.inside((torch.hypot(nx, ny) - 1) * radius)
        c.shade(0.8 * _ellipse_shadow(c, x + 0.55 * radius, y + 0.85 * radius, 1.25 * radius, 0.42 * radius))
        lamp = nx * _LIGHT[0] + ny * _LIGHT[1] + nz * _LIGHT[2]
        half = F.normalize(_LIGHT + torch.tensor([0.0, 0.0, 1.0], dtype=torch.float32), dim=0)
        gloss = 0.55 * (nx * half[0] + ny * half[1] + nz * half[2]).clamp(min=0) ** 60
        first, second = dyes[(start + 5 * k) % 12], dyes[(start + 5 * k + 3) % 12]
        if k == 1:  # painted segments, like a beach ball
            mix = torch.sigmoid(8 * torch.sin(4 * torch.atan2(nx * 0.8 + nz * 0.4, ny + 0.35) + 0.4))
            second = c.grey(0.85)
        elif k == 3:  # mottled, like an apple
            mix = (0.5 + 0.35 * c.grain(0.012, 0.02)).clamp(0, 1)
        else:
            mix = torch.zeros_like(nx)
        c.paint(coverage, first, second=second, mix=mix, lit=1.05 * lamp.clamp(min=0), highlight=gloss)


def _box(c: _Canvas, left: float, top: float, right: float, bottom: float) -> Tensor:
    dx = (c.x - (left + right) / 2).abs() - (right - left) / 2
    dy = (c.y - (top + bottom) / 2).abs() - (bottom - top) / 2
    return torch.maximum(dx, dy)


def _stripes(c: _Canvas, frequency: float, along: Tensor) -> Tensor:
    """Stripes that cover two fifths of each period, with edges as soft as in `inside`."""
    return torch.sigmoid(2 / (frequency * c.pixel) * (torch.sin(frequency * along) - 0.3))


def _turn(x: Tensor, y: Tensor, angle: float) -> tuple[Tensor, Tensor]:
    return x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)


def _soft(distance: Tensor) -> Tensor:
    """A shadow with a penumbra of about a hundredth of the picture."""
    return torch.sigmoid(-distance / 0.006)


def _ellipse_shadow(c: _Canvas, x: float, y: float, a: float, b: float) -> Tensor:
    return torch.sigmoid((1 - torch.hypot((c.x - x) / a, (c.y - y) / b)) / 0.13) * (c.y > 0.60 * c.bottom)

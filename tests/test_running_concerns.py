"""What is wrong in silence is said: too many pixels left out, bands that lie elsewhere, counts that bend."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from cassi import CASSI, Mosaic, reconstruct
from cassi.looking.report_data import read_report
from cassi.optics.measurement import Measurement
from cassi.running.concerns import (
    MAX_RESIDUAL,
    OF_MEASUREMENT,
    OF_REFLECTANCE,
    OF_RESULT,
    Reflectance,
    bend_of,
    concerns_of,
)  # fmt: skip
from cassi.running.result import write_result
from cassi.simulation.scene import procedural_scene

SIZE, BANDS = 64, 8
SHIFTS = tuple(range(0, 2 * BANDS, 2))


@pytest.fixture(scope="module")
def scene() -> torch.Tensor:
    nm = np.linspace(450, 650, BANDS).tolist()
    return procedural_scene(SIZE, SIZE, nm, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def right(scene) -> Measurement:
    mask = (torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(1)) < 0.5).float()
    return Measurement(CASSI(mask, SHIFTS).forward(scene).numpy(), mask.numpy(), SHIFTS)


def gamma(m: Measurement, scene: torch.Tensor, power: float = 1.5) -> Measurement:
    """As 8-bit cameras write."""
    return replace(m, y=np.round(255 * (m.y / m.y.max()) ** (1 / power)).astype(np.float32))


def uneven(m: Measurement, scene: torch.Tensor) -> Measurement:
    """Bands of a prism, said to be even."""
    shifts = (0, 1, 2, 4, 6, 8, 11, 14)
    return replace(m, y=CASSI(torch.as_tensor(m.mask), shifts).forward(scene).numpy())


def steps_of_four(m: Measurement, scene: torch.Tensor) -> Measurement:
    mask, shifts = torch.as_tensor(m.mask), (0, 4, 8, 12, 16, 22, 26, 28)
    y = CASSI(mask, shifts).forward(scene).numpy()
    return replace(m, y=y, shifts=tuple(range(0, 32, 4)))


def saturated(m: Measurement, scene: torch.Tensor) -> Measurement:
    """Half of the lit pixels."""
    top = np.median(m.y[m.y > 0])
    full = m.y >= top
    return replace(m, y=np.minimum(m.y, top), bad_pixels=full, origin={"saturated": int(full.sum())})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(None, ()), (gamma, ("bends with brightness",)), (uneven, ("unexplained", "the mask's pattern is left")),
     (steps_of_four, ("unexplained", "fine texture is not resolved at band 6, 7")), (saturated, ("as saturated",))],
)  # fmt: skip
def test_what_was_wrong_in_silence_is_said_in_the_result_its_file_and_its_report(tmp_path, right, scene, wrong, words):
    """A right measurement is ok, with noise, too."""
    m = right if wrong is None else wrong(right, scene)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = reconstruct(m, prior="tv", camera="as-given")
    assert bool(result.concerns) == (wrong is not None)
    write_result(tmp_path / "cube.h5", result)
    said = read_report(tmp_path / "cube.h5").problems()
    assert said == list(result.concerns) and all(word in " ".join(said) for word in words)


@pytest.mark.parametrize("electrons", [1e9, 1000, 300])
def test_noise_alone_is_no_concern(right, electrons):
    rng = np.random.default_rng(0)
    gain = electrons / right.y.max()
    y = (rng.poisson(right.y * gain) / gain).astype(np.float32)
    for stated in (None, gain) if electrons > 300 else (gain,):
        result = reconstruct(replace(right, y=y, gain=stated), prior="tv", camera="as-given")
        assert result.concerns == (), stated


def test_of_a_mosaic_what_is_left_says_nothing_of_the_camera():
    """Its noise is not stated, and a scene of fine detail does not interpolate well."""
    scene = procedural_scene(64, 64, torch.linspace(450, 650, 16), generator=torch.Generator().manual_seed(3))
    y = Mosaic.from_pattern(np.arange(16).reshape(4, 4), (64, 64)) @ scene
    result = reconstruct(y, pattern="4x4", camera="mosaic", prior="tv")
    assert result.residual > MAX_RESIDUAL and result.concerns == ()
    (said,) = concerns_of(OF_RESULT, replace(result, unresolved=(0,)))
    assert "refine" not in said


def test_the_bend_is_a_correlation():
    """With the square of the light, both less their fit by a line: 1 for a parabola, 0 for a line and for noise."""
    light = torch.linspace(0, 1, 10_000, dtype=torch.float64)
    noise = torch.randn(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for residual, expected in ((light**2, 1), (-3 * light**2 + light, -1), (light + 0.1 * noise, 0), (noise, 0)):
        residual = residual + 1e-9
        assert bend_of(light + residual, residual) == pytest.approx(expected, abs=1e-6)
    size = float((light**2 - light).std())
    mixed = light**2 + size * noise
    assert bend_of(light + mixed, mixed) == pytest.approx(0.5**0.5, abs=0.03)
    assert bend_of(1e20 * (light + light**2), 1e20 * light**2) == pytest.approx(1)
    assert bend_of(light[:9], light[:9]) is None and bend_of(light, 0 * light) is None


@pytest.mark.parametrize(("share", "said"), [(0.0, False), (0.09, False), (0.12, True), (0.6, True)])
def test_a_tenth_of_the_pixels_may_be_left_out(right, share, said):
    bad = np.zeros(right.y.shape, bool)
    bad.flat[: round(share * bad.size)] = True
    assert bool(concerns_of(OF_MEASUREMENT, replace(right, bad_pixels=bad))) == said


def test_what_speaks_against_a_reflectance():
    light, cube = torch.linspace(1, 2, 6).view(-1, 1, 1).repeat(1, 10, 10), torch.ones(6, 10, 10)
    assert concerns_of(OF_REFLECTANCE, Reflectance(light, cube, None)) == ()
    light[0], cube[:, 5, 5] = 0.1, 1.3
    (first, second) = concerns_of(OF_REFLECTANCE, Reflectance(light, cube, None))
    assert "little light in 1 of 6 bands (1)" in first and "values are above 1.2" in second


def test_bands_without_texture_are_named(right):
    result = replace(reconstruct(right, prior="tv", camera="as-given"), unresolved=(0, 1))
    for nm, names in ((np.linspace(450, 520, BANDS), "at 450, 460 nm:"), (None, "at band 1, 2:")):
        said = concerns_of(OF_RESULT, replace(result, wavelengths=nm))[-1]
        assert names in said and "from several captures" in said
    refined = replace(result, measurement=replace(right, mask_error=0.03))
    assert "from more captures" in concerns_of(OF_RESULT, refined)[-1]

"""The data of a camera: one snapshot, several shots of one scene, or a stack of either, with mask and noise."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal, Self

import numpy as np

from cassi.errors import InputError, counted
from cassi.optics.geometry import Shifts
from cassi.optics.wavelengths import same_bands

MASK_RANGE = (1e-6, 1e6)  # of the largest value of a mask
MAX_TRANSMISSION = 2.0  # of a mask; one divided by its mean may exceed 1, one that exceeds this is in another unit
ROUNDING = 1e-6  # relative difference below which values are equal
REFLECTANCE = "reflectance"  # unit of a cube divided by the cube of a white reference
RELATIVE = "relative radiance"  # unit of values whose unit nobody states


MaskKind = Literal[
    "fits", "too small", "no scene", "no detail", "wrong mask", "displaced", "reversed", "turned", "inverted", "bands",
    "bands or blur",
]  # fmt: skip


@dataclass(frozen=True)
class MaskCheck:
    """The result of `cassi.optics.mask_match.check_masks`.

    Attributes:
        kind: "fits" if the mask fits in the given position, orientation and with the given shifts, or what is wrong:
            "reversed" is the dispersion; "bands" means that another number of bands, or a blur of the mask, fits
            better.
        verdict: the same in one sentence, with what would fit.
        scores: multiple correlation R in 0..1 of each hypothesis by name, "as given" among them.
        chance: the largest R of displaced, thus wrong, masks; a match is well above.
        displacement: (rows, columns) by which the given mask fits best, (0, 0) if it is in place.
        turn: the key of `cassi.optics.mask_match.TURNS` with which a flipped or rotated mask fits, else None.
    """

    kind: MaskKind
    verdict: str
    scores: Mapping[str, float]
    chance: float
    displacement: tuple[int, int] = (0, 0)
    turn: str | None = None

    @property
    def matches(self) -> bool:
        """Whether the mask fits, or snapshot and mask are too small to decide."""
        return self.kind in ("fits", "too small")


@dataclass(frozen=True)
class Measurement:
    """The contents of files about one snapshot, K shots of one scene, or a stack of either, ready for the operator.

    Attributes:
        y: measurement (H, W') or (N, H, W'), float32, in `unit`; of K shots (K, H, W') or (N, K, H, W').
        mask: coded aperture (H, W), or one per band (C, H, W), float32, >= 0; of K shots (K, H, W) or (K, C, H, W).
        shifts: displacement d_c of each band on the detector [pixel], C integers, or floats for sub-pixel dispersion.
        wavelengths: (C,) float64 [nm], or None where unknown.
        cube: the truth (C, H, W) or (N, C, H, W), float32, or None.
        mean_band: true mean over the bands (H, W), float32, or None.
        bad_pixels: bool (H, W'), True where the detector is unusable (dead, hot, saturated in any frame), or None; of K
            shots (K, H, W').
        mask_error: standard deviation of what is unknown of the mask, relative to its greatest transmission; None: the
            usual one.
        sensitivity: of each detector pixel (H, W'), 1 on average, float32, or None: y less its black level is divided
            by it; of K shots (K, H, W').
        unit: unit of `y` in words.
        scale: stored counts per unit of `y`.
        gain: electrons per unit of `y`, or None where unknown.
        read_noise: standard deviation of the read noise [electrons], or None where unknown.
        notes: what was inferred or changed, one plain sentence each.
        stored: black level b and counts per unit s of what the file holds, b + s y.
        transposed: the file holds rows and columns the other way round.
        source: name of the file.
        sha256: its SHA-256, hexadecimal.
        shots: K, if each scene was imaged K times, each time through another mask; else None.
        check: comparison of `y` and `mask`, if already made; else None.
        origin: plain values, for the record: the files of "mask" and "wavelengths", in words, or of "filters" in place
            of a mask; "refined", what a file of a camera says was corrected of its mask; the number of "saturated" and
            "hot" pixels; the mean "dark" count.
        searched: the array `y` in which outliers were looked for, if they were (`cassi.optics.outliers`).
    """

    y: np.ndarray
    mask: np.ndarray
    shifts: Shifts
    wavelengths: np.ndarray | None = None
    cube: np.ndarray | None = None
    mean_band: np.ndarray | None = None
    bad_pixels: np.ndarray | None = None
    mask_error: float | None = None
    sensitivity: np.ndarray | None = None
    unit: str = RELATIVE
    scale: float = 1.0
    gain: float | None = None
    read_noise: float | None = None
    notes: tuple[str, ...] = ()
    stored: tuple[float, float] = (0.0, 1.0)
    transposed: bool = False
    source: str = ""
    sha256: str = ""
    shots: int | None = None
    check: MaskCheck | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)
    searched: np.ndarray | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """One line: sizes, bands, source."""
        size = " x ".join(str(n) for n in self.y.shape)
        mask = " x ".join(str(n) for n in self.mask.shape)
        source = f" of {self.source}" if self.source else ""
        return f"<Measurement{source}: {size} px, mask {mask}, {counted(len(self.shifts), 'band')}, {self.unit}>"

    @property
    def num_scenes(self) -> int:
        """Number of scenes: N for a stack, else 1."""
        return self.y.shape[0] if self.y.ndim > (2 if self.shots is None else 3) else 1

    def black_level_left(self, given: float | None) -> float | None:
        """The black level to subtract, in the unit of y: none where reading took off what is given or the file states;
        None: it is to be estimated."""
        return 0.0 if given is None and {"black_level", "dark"} & self.origin.keys() else given

    @property
    def each_shot(self) -> tuple[Self, ...]:
        """The K shots as separate measurements; (self,) if there is only one."""
        if self.shots is None:
            return (self,)
        bad, even = ([None] * self.shots if maps is None else maps for maps in (self.bad_pixels, self.sensitivity))
        own = [{"mask": self.mask[k], "bad_pixels": bad[k], "sensitivity": even[k]} for k in range(self.shots)]
        return tuple(replace(self, y=self.y[..., k, :, :], shots=None, **of) for k, of in enumerate(own))


def as_transmission(mask: np.ndarray) -> tuple[np.ndarray, str | None]:
    """A mask as a transmission, with a note: integers above 1 (0 and 255, percent) are divided by the largest."""
    highest = max(float(mask.max()), -float(mask.min())) if mask.dtype.kind in "iu" and mask.size else 0.0
    if highest <= 1:
        return mask, None
    return mask / highest, f"mask: integers divided by their maximum {highest:g}"


def for_kernels(values: np.ndarray) -> np.ndarray:
    """The array as the compiled kernels need it: float32, C order, writable; copied only if necessary."""
    return np.require(values, np.float32, ("C", "W"))


def any_bad(marked: Iterable[np.ndarray | None]) -> np.ndarray | None:
    """Pixels marked in any of several maps of bad pixels, (H, W') or by frame (N, H, W'); None without a map."""
    maps = [bad for bad in marked if bad is not None]
    return reduce(np.logical_or, maps) if maps else None


def check_camera(measurements: Sequence[Measurement]) -> None:
    """Raise an InputError unless there is no `camera_difference`."""
    if difference := camera_difference(measurements):
        what = f"{difference}: one camera cannot be fitted to both"
        raise InputError(f"{what}; give captures of one camera, or one mask for all", cures=("mask",))


def camera_difference(measurements: Sequence[Measurement]) -> str:
    """How the cameras of the first measurement and of another differ, in words; empty if all share one."""
    first, stated = measurements[0], next((m for m in measurements if m.wavelengths is not None), measurements[0])
    for k, m in enumerate(measurements[1:], start=2):
        name, nm = first.source or "measurement 1", m.wavelengths
        if m.mask.shape != first.mask.shape:
            what = f"masks of {_sizes(first.mask)} and {_sizes(m.mask)} values"
        elif not np.array_equal(m.mask, first.mask):
            what = "different masks"
        elif tuple(m.shifts) != tuple(first.shifts):
            what = "different shifts"
        elif not same_values(m.sensitivity, first.sensitivity) or m.mask_error != first.mask_error:
            what = "different sensitivities of the detector, or errors of the mask,"
        elif nm is not None and stated.wavelengths is not None and not np.array_equal(nm, stated.wavelengths):
            name, what = stated.source or name, "different wavelengths"
        else:
            continue
        return f"{name} and {m.source or f'measurement {k}'} have {what}"
    return ""


def same_values(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Whether two arrays are equal, or both absent."""
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def _sizes(values: np.ndarray) -> str:
    return " x ".join(map(str, values.shape))


def join_shots(shots: Sequence[Measurement]) -> Measurement:
    """K shots of one scene, each through its own mask, as one measurement; other data from the first shot that has it.

    Raises:
        InputError: no shots, or shots that differ in size, bands, unit or number of snapshots.
    """
    if not shots:
        raise InputError("no shots; give one measurement per shot")
    first = shots[0]
    for k, shot in enumerate(shots[1:], start=2):
        for name, expected, stated in (
            ("snapshot", first.y.shape, shot.y.shape),
            ("mask", first.mask.shape, shot.mask.shape),
            ("shifts", tuple(first.shifts), tuple(shot.shifts)),
            ("counts per unit", first.scale, shot.scale),
        ):
            if expected != stated:
                raise InputError(
                    f"the shots of one scene must be alike, shot 1 ({first.source}) has {name} {expected}, shot {k} "
                    f"({shot.source}) {stated}; give shots of one camera, of one size and scale"
                )

        if not same_bands(first.wavelengths, shot.wavelengths):
            raise InputError(f"shot 1 ({first.source}) and shot {k} ({shot.source}) have different wavelengths")

    def first_given(name: str) -> object:
        return next((value for shot in shots if (value := getattr(shot, name)) is not None), None)

    none = np.zeros(first.y.shape[-2:], dtype=bool)
    bad = [none if shot.bad_pixels is None else shot.bad_pixels for shot in shots]
    even = [np.ones(none.shape, np.float32) if shot.sensitivity is None else shot.sensitivity for shot in shots]
    notes = list(dict.fromkeys(note for shot in shots for note in shot.notes))
    gains = [shot.gain for shot in shots if shot.gain is not None]
    if gains and (len(gains) < len(shots) or max(gains) > 1.001 * min(gains)):
        notes.append(f"the shots' gains are {', '.join(f'{g:.5g}' for g in gains)}: their geometric mean is used")
    masks = ", ".join(dict.fromkeys(filter(None, (shot.origin.get("mask") for shot in shots))))
    return replace(
        first,
        y=np.stack([shot.y for shot in shots], axis=-3),
        mask=np.stack([shot.mask for shot in shots]),
        bad_pixels=np.stack(bad) if any(b.any() for b in bad) else None,
        sensitivity=np.stack(even) if first_given("sensitivity") is not None else None,
        gain=float(np.exp(np.mean(np.log(gains)))) if gains else None,
        notes=tuple(notes),
        source=", ".join(dict.fromkeys(shot.source for shot in shots)),
        sha256=" ".join(dict.fromkeys(shot.sha256 for shot in shots)),
        shots=len(shots),
        origin={**first.origin, "mask": masks, "saturated": sum(shot.origin.get("saturated", 0) for shot in shots)},
        **{name: first_given(name) for name in ("wavelengths", "cube", "mean_band", "read_noise")},  # type: ignore[arg-type]
    )


def no_scene_reason(m: Measurement) -> str:
    """Why a measurement shows no scene, as all good pixels of a snapshot are equal; empty if it shows one.

    No scene can make them equal, because fewer bands reach the ends of the detector. For a stack, all snapshots count.
    """
    for shot in m.each_shot:
        values = shot.y.reshape(-1, shot.y.shape[-2] * shot.y.shape[-1])
        if shot.bad_pixels is not None:
            values = values[:, ~shot.bad_pixels.reshape(-1)]
        low, high = values.min(axis=1), values.max(axis=1)
        if np.all(high - low <= ROUNDING * np.maximum(np.abs(low), np.abs(high))):
            if not values.any() and shot.bad_pixels is not None and shot.bad_pixels.any():
                return f"no light is left: {shot.bad_pixels.mean():.0%} of the pixels are excluded as bad or saturated"
            if not values.any():
                return "the snapshot is black: no light reached it"
            return f"the snapshot is {high[0]:g} everywhere and shows no scene"
    return ""


def check_arrays(m: Measurement) -> None:
    """Check a Measurement made from arrays; those from files were checked when they were read."""
    if not np.isfinite(m.mask).all():
        raise InputError("the mask holds NaN or Inf")
    if not m.mask.any():
        raise InputError("the mask is zero everywhere: no light reaches the detector")
    if not MASK_RANGE[0] <= np.abs(m.mask).max() <= MASK_RANGE[1]:
        what = f"the mask's largest value is {np.abs(m.mask).max():.3g}, expected a transmission, about 0 to 1"
        raise InputError(f"{what}; divide it by its largest value")
    if m.shots is not None and (m.y.ndim not in (3, 4) or not m.y.shape[-3] == len(m.mask) == m.shots):
        what = f"{m.shots} shots must be ({m.shots}, H, W') with masks ({m.shots}, H, W)"
        raise InputError(f"{what}, got {m.y.shape} and masks {m.mask.shape}")
    bad, pixels = m.bad_pixels, m.y.shape[-2 if m.shots is None else -3 :]
    if bad is not None and (bad.dtype != bool or bad.shape != pixels):
        raise InputError(f"bad_pixels must be bool {pixels}, one per detector pixel, got {bad.dtype} {bad.shape}")
    if bad is not None and bad.all():
        raise InputError("every detector pixel is marked bad")
    if (s := m.sensitivity) is not None:
        if s.shape != pixels:
            raise InputError(f"the sensitivity must be {pixels}, one number per detector pixel, got {s.shape}")
        known = s if bad is None else s[~bad]
        if not (np.isfinite(known).all() and (known > 0).all()):
            what = f"the sensitivity must be positive, about 1, got {known.min():g} to {known.max():g}"
            raise InputError(f"{what}; mark other pixels in bad_pixels")
    if not np.isfinite(m.y if bad is None else m.y[..., ~bad]).all():
        raise InputError("the measurement holds NaN or Inf; mark those pixels in bad_pixels")
    check_noise(m.gain, m.read_noise)


def check_noise(gain: float | None, read_noise: float | None) -> None:
    """Raise InputError for a gain or a read noise that no camera has."""
    if gain is not None and not (math.isfinite(gain) and gain > 0):
        raise InputError(f"the gain must be positive [electrons per unit of y], got {gain}", cures=("gain",))
    if read_noise is not None and not (math.isfinite(read_noise) and read_noise >= 0):
        raise InputError(f"the read noise must be >= 0 [electrons], got {read_noise}")

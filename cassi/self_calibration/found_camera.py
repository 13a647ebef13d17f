"""A camera as it was given, or as its snapshots show it to be: what the search finds, says, saves and puts in place."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cassi.errors import InputError, parse_json
from cassi.files import open_container, write_arrays
from cassi.files.container import damage_as_input_error
from cassi.files.cubes import turn, turn_of
from cassi.optics.measurement import MAX_TRANSMISSION, Measurement, any_bad
from cassi.optics.outliers import MAX_SHARE
from cassi.self_calibration.camera_model import CameraModel, band_positions, coordinates, shift_columns
from cassi.self_calibration.elements_of_several import MaskError


@dataclass(frozen=True, eq=False)
class FoundCamera:
    """A camera as given, or as its snapshots show it to be.

    Attributes:
        mask: (H, W) as given, or (C, H, W), the mask of each band as it was found.
        shifts: displacement of each band [pixel], whole numbers where it was found.
        model: what was found; exact where the camera was left as given.
        accepted: whether that explains the snapshots clearly better.
        errors: held-out error of a short reconstruction with the camera as given and as found; None where none was run.
        reason: why it was not looked for, or refused though it predicts better, in words; else empty.
        dispersion: by how much that of the snapshots is larger than the one given, as a share of it.
        remainders: by how much the bands of a cube lie to the right of where they belong [pixel], see `register`.
        left_out: (H, W') bool, detector pixels that light reaches through elements beyond the mask's picture, and
            defects; or None.
        sensitivity: (H, W') of detector pixels, as several captures show it, or None.
        defects: how many dead, warm or stuck detector pixels are among them.
        disputed: how many look so, where they are too many to be believed, and none of them is left out.
        mask_error: what was learned of the mask element by element; it is in `mask` where it was accepted. None where
            it was not looked for.
        network: the weights that this was learned with, and what they may be used for, in words; empty without any.
    """

    mask: np.ndarray
    shifts: tuple[float, ...]
    model: CameraModel
    accepted: bool
    errors: tuple[float, float] | None = None
    reason: str = ""
    dispersion: float = 0.0
    remainders: tuple[float, ...] = ()
    left_out: np.ndarray | None = None
    sensitivity: np.ndarray | None = None
    defects: int = 0
    disputed: int = 0
    mask_error: MaskError | None = None
    network: str = ""

    @classmethod
    def as_given(cls, m: Measurement) -> FoundCamera:
        """That of a measurement, as it is believed."""
        return cls(m.mask, m.shifts, CameraModel(), False)

    def __repr__(self) -> str:
        """One line: bands, and what was found."""
        return f"<FoundCamera: {len(self.shifts)} bands. {self.message}>"

    @property
    def message(self) -> str:
        """What was found, in one sentence, and in another what is wrong with the detector."""
        return " ".join(filter(None, (self.optics, self.detector)))

    @property
    def left(self) -> float | None:
        """What remains unknown of the mask, relative to its greatest transmission; None where no capture says so."""
        return None if self.mask_error is None else self.mask_error.left

    @property
    def detector(self) -> str:
        """What is wrong with the detector, in one sentence; empty where nothing is."""
        if not (count := self.defects or self.disputed):
            return ""
        pixels = "1 detector pixel contradicts" if count == 1 else f"{count} detector pixels contradict"
        disagree = f"{pixels} every scene that fits {'its' if count == 1 else 'their'} neighbors"
        if self.defects:
            return f"{disagree}, and {'is' if count == 1 else 'are'} left out as bad."
        return (
            f"{disagree}, more than the {MAX_SHARE:.0%} that may be defects, and none is left out; is the camera the "
            "right one? A map of bad pixels settles it."
        )

    @property
    def optics(self) -> str:
        """What was found of the mask and the dispersion, in one sentence, and in another why not of its elements."""
        learned = self.mask_error
        if learned is None or learned.accepted:
            return self.place
        return f"{self.place} The mask's elements were left as they are: {learned.reason}."

    @property
    def place(self) -> str:
        """What was found, in one sentence."""
        if not self.accepted:
            if self.reason:
                return f"The camera was taken as given: {self.reason}."
            if self.errors is None:
                return "The camera was taken as given: nothing else fits the snapshot better."
            return "The camera was taken as given: another fits the mask's pattern better, but predicts worse."
        before, after = self.errors or (0.0, 0.0) if self.corrected is None else self.corrected.mean_errors
        trial = f"in a short trial its held-out error is {after:.2%}, that of the camera as given {before:.2%}"
        return f"Camera found from the snapshot: {', '.join(self.findings)}; {trial}."

    @property
    def findings(self) -> list[str]:
        """What was corrected of mask, dispersion and detector, in words; empty where the camera is as given."""
        if not self.accepted:
            return []
        down, right = (terms.get("1", 0.0) for terms in (self.model.down, self.model.right))
        words: list[str] = []
        if self.model.down or self.model.right:
            words.append(
                f"mask moved by ({right:+.2f}, {down:+.2f}) px (right, down), turned by {self.turn:+.2f} degrees, "
                f"magnified by {self.magnification:+.2f} %"
            )
        if self.dispersion:
            words.append(f"dispersion {100 * self.dispersion:+.2f} %")
        low, high = self.blur_range
        if high > 0.05:
            from_to = f"{low:.1f} to " if f"{low:.1f}" != f"{high:.1f}" else ""
            words.append(f"mask blurred by {from_to}{high:.1f} px")
        if self.model.contrast != 1:
            words.append(f"its contrast {self.model.contrast:.2f}")
        if self.model.tone != 1:
            words.append(f"its values to the power {self.model.tone:g}")
        if self.model.continuous:
            words.append("light between band centers assigned to the nearest band")
        if self.corrected is not None:
            by = float(self.corrected.error.std()) / float(self.mask.max())
            words.append(f"its elements corrected by {by:.1%}{f' with {self.network}' if self.network else ''}")
        gain = self.sensitivity if self.corrected is None else self.corrected.gain
        if gain is not None:
            words.append(f"the sensitivity of detector pixels by {float(gain.std()):.1%}")
        return words

    @property
    def turn(self) -> float:
        """Of the mask [degree], columns towards rows."""
        return -math.degrees(float(self.model.down.get("x", 0.0)) / (int(self.mask.shape[-1]) / 2))

    @property
    def magnification(self) -> float:
        """Of the mask, along the columns [%]."""
        return 200 * float(self.model.down.get("y", 0.0)) / int(self.mask.shape[-2])

    @property
    def blur_range(self) -> tuple[float, float]:
        """Least and greatest standard deviation of the blur over field and bands [pixel], 0 where it is sharper."""
        x, y = coordinates((9, 9))
        values = [self.model.blur_at(x, y, t) for t in band_positions(min(len(self.shifts), 9))]
        return float(np.min(values)), float(np.max(values))

    @property
    def corrected(self) -> MaskError | None:
        """What was learned of the mask's elements, where it is in the mask."""
        return self.mask_error if self.mask_error is not None and self.mask_error.accepted else None

    def register(self, cube: torch.Tensor) -> torch.Tensor:
        """Move the bands of a reconstructed cube (..., C, H, W) from where they lie to where they belong."""
        return shift_columns(cube, [-f for f in self.remainders]) if any(self.remainders) else cube

    def in_place(self, m: Measurement) -> Measurement:
        """The measurement with this camera in place of its own."""
        m = m if self.left_out is None else replace(m, bad_pixels=any_bad((m.bad_pixels, self.left_out)))
        m = m if self.sensitivity is None else replace(m, sensitivity=self.sensitivity)
        m = m if self.left is None else replace(m, mask_error=self.left)
        return replace(m, mask=self.mask, shifts=self.shifts) if self.accepted else m

    def save(
        self, path: str | os.PathLike[str], *, of: Measurement | None = None, wavelengths: np.ndarray | None = None,
        overwrite: bool = False,
    ) -> Path:  # fmt: skip
        """Write HDF5: mask, shifts, mask_3d_shift (C, H, W'), each band's mask where it falls, bad_pixels and
        sensitivity if any.

        Args:
            path: of the file.
            of: a measurement that the camera was found from: what it states of its detector and its mask is kept.
            wavelengths: of the bands [nm], where they are known: who reads the camera has them too.
            overwrite: replace the file if there is one.

        Raises:
            OutputError, InputError: see `cassi.files.write_arrays`.
        """
        whole = np.asarray(self.shifts, int) - min(map(int, self.shifts))
        masks = np.broadcast_to(self.mask, (len(whole), *self.mask.shape[-2:]))
        sides = [((0, 0), (d, max(whole) - d)) for d in whole]
        shifted = np.stack([np.pad(mask, side) for mask, side in zip(masks, sides, strict=True)]).astype(np.float32)
        detector, left, refined = {"bad_pixels": self.left_out, "sensitivity": self.sensitivity}, self.left, None
        if of is not None:
            m = self.in_place(of)
            detector["sensitivity"], left = m.sensitivity, m.mask_error
            if not (m.origin.get("saturated") or m.origin.get("missing")):  # others are bad in this snapshot alone
                detector["bad_pixels"] = m.bad_pixels
            refined = None if self.accepted else m.origin.get("refined")
        arrays = {"mask": self.mask, "shifts": np.asarray(self.shifts), "mask_3d_shift": shifted}
        arrays |= {name: image for name, image in detector.items() if image is not None and image.ndim == 2}
        arrays |= {} if wavelengths is None else {"wavelengths": wavelengths}
        axes = {"mask": "CHW", "mask_3d_shift": "CHW"}
        stated = {"camera": self.as_dict(), "mask_error": left, "refined": refined}
        return write_arrays(path, arrays, axes=axes, attributes=stated, overwrite=overwrite)

    def is_saved(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file is there that holds this camera, as `save` writes it."""
        try:
            container = open_container(Path(path))
        except (OSError, InputError):
            return False
        mask, shifts = (container.entry(name) for name in ("mask", "shifts"))
        return bool(mask and shifts and np.array_equal(container.read(mask), self.mask))

    def images(self, given: np.ndarray) -> dict[str, np.ndarray]:
        """What the file of a result holds of its mask, as `read_found_mask` takes it: the mask as given, (H, W), unless
        there is one for each band, and the error of its elements, (H, W) or (C, H, W)."""
        if not self.accepted:
            return {}
        error = {} if self.corrected is None else {"mask_error": self.corrected.error.cpu().numpy()}
        return error | ({"mask_given": given} if given.ndim == 2 else {})

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        stated = {"accepted": self.accepted, "dispersion": self.dispersion, "message": self.message}
        stated |= {"findings": self.findings, "reason": self.reason, "remainders": list(self.remainders)}
        unseen = 0 if self.left_out is None else int(self.left_out.sum()) - self.defects
        stated |= {"unseen": unseen, "defects": self.defects, "disputed": self.disputed, "network": self.network}
        errors = None if self.errors is None else list(self.errors)
        learned = None if self.mask_error is None else self.mask_error.as_dict()
        return stated | {"held_out_errors": errors, "mask_error": learned} | asdict(self.model)


def read_found_mask(path: str | os.PathLike[str], given: np.ndarray | None = None) -> np.ndarray:
    """The mask of each band, (C, H, W), that a result with a found camera was made with.

    It is made again from the mask as given, the model of the camera and the error of the elements that its file holds.

    Args:
        path: of the result.
        given: the mask as given where that is one for each band, (C, H, W), which a result does not repeat.

    Raises:
        InputError: a file that cannot be read, or of a result whose camera was taken as given.
    """
    container = open_container(Path(path))
    stored, error = container.entry("mask_given"), container.entry("mask_error")
    with damage_as_input_error(Path(path), "a result"):
        known = parse_json(str(container.attributes.get("camera", "{}")))
        how = str(container.attributes.get("turned", "none"))
        back = turn_of(how, back=True)
        if given is None and stored is not None:
            given = turn(container.read(stored), back)
        if given is None or not known.get("accepted"):
            mask = parse_json(str(container.attributes.get("origin", "{}"))).get("mask", "its own file")
            raise InputError(f"{path}: holds no mask that was found; the one that was given is that of {mask}")
        model = CameraModel(**{one.name: known[one.name] for one in fields(CameraModel)})
        shifts = parse_json(str(container.attributes["shifts"]))
        mask = np.broadcast_to(model.masks(given, tuple(shifts)), (len(shifts), *given.shape[-2:]))
        if any(known["remainders"]):
            moved = shift_columns(torch.as_tensor(mask.copy()), tuple(known["remainders"]))
            mask = np.clip(moved.numpy(), 0, given.max())
        if error is not None:
            most = max(MAX_TRANSMISSION, float(mask.max()))
            mask = np.clip(mask + turn(container.read(error), back), 0, most).astype(mask.dtype)
        return turn(np.asarray(mask), how)

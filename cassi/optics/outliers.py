"""Detector pixels that light cannot explain, hot pixels, cosmic rays, spikes, and those cut off at a largest value."""

from dataclasses import replace

import numpy as np
import torch

from cassi.errors import Note
from cassi.optics.building import build_camera
from cassi.optics.measurement import Measurement

NEIGHBORS_ALONG, NEIGHBORS_ACROSS = 4, 8  # on either side, along and across the dispersion
MIN_CONTRAST = 8.0  # above the neighbors, in units of their scatter
MIN_BANDS = 6  # with fewer, light of one color may look like an outlier
MANY = 0.005  # share of the pixels above which outliers hide each other
MAX_SHARE = 0.03  # above it, the scene or the mask may be the cause
NUM_LOWER_VALUES = 10  # values below the largest, which together occur less often where brighter pixels were cut off
TOO_MANY = f"exceed all their neighbors, more than the {MAX_SHARE:.0%} that hot pixels can explain"


def impulses(y: np.ndarray, num_bands: int) -> np.ndarray:
    """Pixels of a snapshot (H, W') that exceed their neighbors along both row and column, (H, W') bool.

    A point of the scene is spread over one pixel per band of its row, so that neighbors there share its light; a line
    or a patch of a single color is not spread, but extends along the column. With fewer than 6 bands none is reported.
    With n the 8 nearest neighbors in the row or the 16 in the column, and s the mean of |n - median n| without the
    largest and the smallest n:

        y - (second largest n) > 8 (s + s0)        s0 = 1.48 median |y - median n|, the scatter of the whole snapshot

    The second largest is used, so that two adjacent outliers do not hide each other. If more than 0.5 % of the pixels
    are outliers, more may do so: then the third largest in the row and the fourth in the column are used, twice, after
    replacing the outliers by the median of their row.
    """
    outliers = np.zeros(y.shape, bool)
    if num_bands < MIN_BANDS or min(y.shape) < 2 * NEIGHBORS_ACROSS + 1 or y.max() == y.min():
        return outliers
    for in_row, in_column in ((2, 2), (3, 4), (3, 4)):
        in_rows, median = _exceeding(y, NEIGHBORS_ALONG, in_row)
        new = in_rows & _exceeding(y.T, NEIGHBORS_ACROSS, in_column)[0].T
        outliers |= new
        if outliers.mean() <= MANY:
            break
        y = np.where(new, median, y)
    return outliers


def _exceeding(y: np.ndarray, reach: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Which pixels clearly exceed all but `rank` - 1 neighbors in the row, and the median of the neighbors."""
    width = y.shape[-1]
    padded = np.pad(y.astype(np.float32), ((0, 0), (reach, reach)), mode="reflect")
    offsets = [d for d in range(-reach, reach + 1) if d]
    near = np.sort(np.stack([padded[:, reach + d : reach + d + width] for d in offsets]), axis=0)
    median = near[reach - 1 : reach + 1].mean(0)
    scatter = np.abs(near[rank - 1 : 1 - rank] - median).mean(0) + 1.48 * np.median(np.abs(y - median))
    above: np.ndarray = y - near[-rank] > MIN_CONTRAST * scatter
    return above, median


def remove_outliers(m: Measurement) -> Measurement:
    """The measurement without impulses and plateaus, which are looked for once in the same array y."""
    if m.searched is not None and m.searched is m.y:
        return m
    return replace(remove_plateau(remove_impulses(m)), searched=m.y)


def remove_impulses(m: Measurement) -> Measurement:
    """The measurement with outliers (in a stack, of most frames) marked as bad pixels, and a note.

    Shots are treated separately. If more than 3 % are outliers, which the scene may explain, there is only the note.
    """
    pixels = m.y.shape[-2 if m.shots is None else -3 :]
    frames = m.y.reshape(-1, *pixels)
    spread = len({round(d) for d in m.shifts})  # detector pixels lit by one scene point
    votes = np.zeros(pixels, np.int64)
    for frame in frames:
        outliers = [impulses(snapshot, spread) for snapshot in frame.reshape(-1, *pixels[-2:])]
        votes += np.stack(outliers).reshape(pixels)
    known = np.zeros(votes.shape, bool) if m.bad_pixels is None else m.bad_pixels
    new = (2 * votes > len(frames)) & ~known
    if not new.any():
        return m
    count = np.count_nonzero(new)
    if count > MAX_SHARE * new.size:
        cure = "none is excluded; if they are hot pixels, give a map of bad pixels"
        note: str = Note(f"{count / new.size:.1%} of the pixels {TOO_MANY}: {cure}", "too many", ("bad_pixels",))
        return m if note in m.notes else replace(m, notes=(*m.notes, note))
    text = "1 pixel exceeds all its" if count == 1 else f"{count} pixels exceed all their"
    are = "is" if count == 1 else "are"
    note = f"{text} neighbors by more than light can explain and {are} excluded as bad: hot pixels or cosmic rays"
    origin = {**m.origin, "hot": int(count)}
    return replace(m, bad_pixels=known | new, notes=(*m.notes, note), origin=origin)


def remove_plateau(m: Measurement) -> Measurement:
    """The measurement with clipped pixels (in a stack, of any frame) marked as bad, and a note.

    Noise lets ever fewer pixels reach higher values, so that the largest one occurs once, or a few times in counts.
    Where a detector or a program cuts brighter pixels off, all of them hold it:

        #{y = max y} > #{y = one of the 10 largest values below},

    over the good pixels, and in no more than half of them, which an even scene may be, where no less light can arrive
    than elsewhere: in an inverted snapshot the dark border holds the largest value. Clipped at 60 % of the peak, 1.0
    to 7.5 % of the pixels of six CAVE scenes cost 1.5 to 9.5 dB, and 0.1 to 0.4 dB where they are left out. Of 600
    snapshots that were not clipped (also white boards, 6 bits to floats, 100 electrons to no noise) none is touched.
    """
    pixels = m.y.shape[-2 if m.shots is None else -3 :]
    known = np.zeros(pixels, bool) if m.bad_pixels is None else m.bad_pixels
    good = m.y[..., ~known]
    if not good.size or (top := good.max()) <= 0:
        return m
    count = np.count_nonzero(good == top)
    if count <= NUM_LOWER_VALUES or 2 * count > good.size:
        return m
    occurring = np.unique(good, return_counts=True)[1]
    if len(occurring) <= NUM_LOWER_VALUES or count <= occurring[-1 - NUM_LOWER_VALUES : -1].sum():
        return m
    new = (m.y == top).reshape(-1, *pixels).any(0) & ~known
    reach = build_camera(m, torch.device("cpu")).response().numpy()
    if reach[new].mean() < reach.mean() / 2:
        return m
    black, unit = m.stored
    note = (
        f"{np.count_nonzero(new)} pixels share the largest value, {black + unit * float(top):.4g}, more than the "
        f"{NUM_LOWER_VALUES} next lower values together: they are saturated and excluded as bad"
    )
    origin = {**m.origin, "saturated": m.origin.get("saturated", 0) + int(np.count_nonzero(new))}
    return replace(m, bad_pixels=known | new, notes=(*m.notes, note), origin=origin)

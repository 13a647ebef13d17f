"""Detector pixels whose value light hardly explains: hot pixels, cosmic rays, spikes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cassi.errors import Note
from cassi.optics.measurement import Measurement

REACH, ACROSS = 4, 8  # neighbors on either side, along the dispersion and across
CLEAR = 8.0  # above them, in units of their own scatter
FEWEST_BANDS = 6  # below, light of one color may make such pixels
MANY = 0.005  # share of the pixels from which on they hide each other; hardly a scene has as many
MOST = 0.03  # where more stand out, it may be the scene or the mask
TOO_MANY = f"stand out from all sides, more than the {MOST:.0%} that are taken for hot ones"


def impulses(y: np.ndarray, num_bands: int) -> np.ndarray:
    """Pixels of a snapshot (H, W') that stand out from their neighbors along both row and column, (H, W') bool.

    A point of the scene is spread over as many pixels of its row as there are bands, so that the light of each pixel
    is shared with its neighbors there; a line or a patch of one color, which is not, is seen in the column too. Of
    fewer than 6 bands none is told. With n the 8 nearest of the row or the 16 of the column, and s the mean of
    |n - median n|, the largest and the smallest n left out:

        y - (second largest n) > 8 (s + s0)        s0 = 1.48 median |y - median n|, the scatter of the whole picture

    Only the second largest counts, so that two such pixels side by side do not hide each other. Where more than 0.5 %
    of the pixels are found, more of them do: then it is the third largest of the row and the fourth of the column,
    twice, after what was found has become the median of its row.
    """
    found = np.zeros(y.shape, bool)
    if num_bands < FEWEST_BANDS or min(y.shape) < 2 * ACROSS + 1 or y.max() == y.min():
        return found
    for in_row, in_column in ((2, 2), (3, 4), (3, 4)):
        stands_out, median = _stand_out(y, REACH, in_row)
        fresh = stands_out & _stand_out(y.T, ACROSS, in_column)[0].T
        found |= fresh
        if found.mean() <= MANY:
            break
        y = np.where(fresh, median, y)
    return found


def _stand_out(y: np.ndarray, reach: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Which pixels stand out from all but `rank` - 1 neighbors in the row; and the median of those neighbors."""
    width = y.shape[-1]
    padded = np.pad(y.astype(np.float32), ((0, 0), (reach, reach)), mode="reflect")
    offsets = [d for d in range(-reach, reach + 1) if d]
    near = np.sort(np.stack([padded[:, reach + d : reach + d + width] for d in offsets]), axis=0)
    median = near[reach - 1 : reach + 1].mean(0)
    scatter = np.abs(near[rank - 1 : 1 - rank] - median).mean(0) + 1.48 * np.median(np.abs(y - median))
    above: np.ndarray = y - near[-rank] > CLEAR * scatter
    return above, median


def without_impulses(m: Measurement) -> Measurement:
    """The measurement with such pixels among the bad ones, in a stack those of most of its frames, and a note on it.

    Each of several shots has its own. Where more than 3 % stand out, which may be the scene, there is only the note.
    """
    pixels = m.y.shape[-2 if m.shots is None else -3 :]
    frames = m.y.reshape(-1, *pixels)
    places = len({round(d) for d in m.shifts})  # that the light of one point falls on
    votes = np.zeros(pixels, np.int64)
    for frame in frames:
        found = [impulses(one, places) for one in frame.reshape(-1, *pixels[-2:])]
        votes += np.stack(found).reshape(pixels)
    known = np.zeros(votes.shape, bool) if m.bad_pixels is None else m.bad_pixels
    fresh = (2 * votes > len(frames)) & ~known
    if not fresh.any():
        return m
    count = np.count_nonzero(fresh)
    if count > MOST * fresh.size:
        cure = "none is left out; if they are hot pixels, give a map of bad pixels"
        note: str = Note(f"{count / fresh.size:.1%} of the pixels {TOO_MANY}: {cure}", "too many", ("bad_pixels",))
        return m if note in m.notes else replace(m, notes=(*m.notes, note))
    what, are = ("1 pixel stands", "is") if count == 1 else (f"{count} pixels stand", "are")
    note = f"{what} out from all sides, as light hardly can, and {are} left out as bad: hot pixels or cosmic rays"
    return replace(m, bad_pixels=known | fresh, notes=(*m.notes, note))

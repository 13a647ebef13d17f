"""Which pixels to show spectra of, where nobody has said."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from cassi.looking.color import as_array


class Point(NamedTuple):
    """A pixel, counted from 0, and what makes it difficult: "edge", "vivid" or nothing."""

    row: int
    column: int
    kind: str = ""


def choose_points(cube: Tensor | np.ndarray, count: int = 6, *, difficult: int = 2) -> list[Point]:
    """Pick pixels whose spectra differ most in shape and that lie well apart. The same cube, the same points.

    Most lie inside even areas, where a reconstruction is at its best: farthest-first selection (T. F. Gonzalez, 1985)
    among block means, by the direction of the spectrum; blocks that are uneven, dim or close to a point already taken
    count less. Then up to `difficult` of them, but no more than half: the block of the most vivid color (furthest
    from a flat spectrum), and the one with the strongest edge.

    Args:
        cube: (C, H, W).
        count, difficult: how many points, and how many of them on difficult places, at most 2.

    Returns:
        The points, from top to bottom; fewer where the picture has fewer pixels.

    Raises:
        ValueError: not one cube.

    Example:
        >>> cube = np.zeros((2, 32, 32))
        >>> cube[0, :, :16], cube[1, :, 16:] = 1, 1
        >>> sorted(point.column < 16 for point in choose_points(cube, 2, difficult=0))
        [False, True]
    """
    values = as_array(cube)
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(f"cube must be (bands, height, width) and not empty, got shape {values.shape}")
    stride = max(1, min(values.shape[1:]) // 512)  # of a large frame a part is enough
    values = np.nan_to_num(values[:, ::stride, ::stride], posinf=0, neginf=0)
    num_bands, height, width = values.shape
    block = max(1 + (min(height, width) >= 16), min(height, width) // 40)  # one pixel alone has no edge in it
    rows, columns = height // block, width // block
    tiles = values[:, : rows * block, : columns * block].reshape(num_bands, rows, block, columns, block)
    mean = tiles.mean(axis=(2, 4))
    level = np.linalg.norm(mean, axis=0)
    bright = np.percentile(level, 95) + 1e-12
    direction = mean / (level + 0.02 * bright)
    contrast = np.sqrt(tiles.var(axis=(2, 4)).sum(axis=0))
    # Uneven: the block's own contrast, and the step in spectral shape to its neighbors (edges make poor points).
    uneven = 0.5 * contrast / (level + 0.05 * bright)
    padded = np.pad(direction, ((0, 0), (1, 1), (1, 1)), mode="edge")
    for dy, dx in ((0, 1), (2, 1), (1, 0), (1, 2)):
        uneven += 0.5 * np.linalg.norm(padded[:, dy : dy + rows, dx : dx + columns] - direction, axis=0)
    lit = np.minimum(1, 4 * level / bright)
    row, column = (index.ravel() for index in np.indices((rows, columns)))
    margin = min(rows, columns) // 16
    inside = np.where(
        (np.minimum(row, rows - 1 - row) < margin) | (np.minimum(column, columns - 1 - column) < margin), 1e-3, 1
    )
    worth = ((np.exp(-3 * uneven) * lit).ravel() + 1e-6) * inside
    direction = direction.reshape(num_bands, -1)

    count = min(count, row.size)
    hard = min(difficult, 2, count // 2)
    kinds = [""] * (count - hard) + ["vivid", "edge"][:hard]
    vivid = np.linalg.norm(direction - direction.mean(axis=0), axis=0) * lit.ravel() * inside
    edge = contrast.ravel() * inside

    score = np.linalg.norm(direction - direction.mean(axis=1, keepdims=True), axis=0) * worth
    away, room = np.full((2, row.size), np.inf)
    chosen: list[int] = []
    for kind in kinds:
        if kind:
            score = (vivid if kind == "vivid" else edge) * np.minimum(1, 6 * room)
        score[chosen] = -1
        best = int(score.argmax())
        chosen.append(best)
        away = np.minimum(away, np.linalg.norm(direction - direction[:, best : best + 1], axis=0))
        room = np.minimum(room, np.hypot(row - row[best], column - column[best]) / min(rows, columns))
        # Points closer than a third of the picture crowd each other; much further apart is no merit.
        score = (away + 0.2 * np.minimum(room, 1)) * np.minimum(1, 3 * room) ** 2 * worth
    center = block // 2
    return sorted(
        Point((int(row[k]) * block + center) * stride, (int(column[k]) * block + center) * stride, kind)
        for k, kind in zip(chosen, kinds, strict=True)
    )

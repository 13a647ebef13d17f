"""Chooses the pixels whose spectra are shown."""

import numpy as np

from cassi.looking.color import Array, as_cube

WORST = 0.88, 0.92  # shares of the pixels with smaller errors than the last point, from and to


def points_of(cube: np.ndarray, truth: np.ndarray | None, uncertainty: np.ndarray | None) -> list[tuple[int, int]]:
    """The pixels whose spectra figures and page show, by truth and true errors where known, else by error bars."""
    error = uncertainty if truth is None else np.nan_to_num(cube) - truth
    return choose_points(cube if truth is None else truth, error=error)


def choose_points(cube: Array, count: int = 6, *, error: np.ndarray | None = None) -> list[tuple[int, int]]:
    """Choose pixels that are well apart and whose spectra differ most in shape; deterministic.

    Farthest-first selection (T. F. Gonzalez, 1985) among the means of blocks, by the direction of the spectrum and
    the position. Blocks that are dim, at the border, or unlike their neighbors count less. Such places show a cube at
    its best; so with an `error` (C, H, W) the last one is where nine of ten blocks have a smaller one.

    Returns:
        Row and column of each, from 0, sorted from top to bottom; fewer if the picture has fewer pixels.

    Raises:
        ValueError: not a single cube (C, H, W).

    Example:
        >>> cube = np.zeros((2, 32, 32))
        >>> cube[0, :, :16], cube[1, :, 16:] = 1, 1
        >>> sorted(column < 16 for row, column in choose_points(cube, 2))
        [False, True]
    """
    values, _ = as_cube(cube)
    num_bands, height, width = values.shape
    block = max(1, min(height, width) // 40)
    rows, columns = height // block, width // block
    tiles = values[:, : rows * block, : columns * block].reshape(num_bands, rows, block, columns, block)
    mean = np.nan_to_num(tiles.mean(axis=(2, 4), dtype=np.float64), posinf=0, neginf=0).reshape(num_bands, -1)
    level = np.linalg.norm(mean, axis=0)
    bright = np.percentile(level, 95) or level.max() or 1.0
    direction = mean / (level + 0.02 * bright)
    row, column = (index.ravel() for index in np.indices((rows, columns)))
    margin = min(rows, columns) // 16
    border = np.minimum(np.minimum(row, rows - 1 - row), np.minimum(column, columns - 1 - column))
    padded = np.pad(direction.reshape(num_bands, rows, columns), ((0, 0), (1, 1), (1, 1)), mode="edge")
    beside = [padded[:, i : i + rows, j : j + columns] for i, j in ((0, 1), (2, 1), (1, 0), (1, 2))]
    step = sum(np.linalg.norm(neighbor - padded[:, 1:-1, 1:-1], axis=0) for neighbor in beside).ravel()
    worth = np.minimum(1, 4 * level / bright) * np.exp(-1.5 * step) * np.where(border < margin, 1e-3, 1)

    score = np.linalg.norm(direction - direction.mean(axis=1, keepdims=True), axis=0) * worth
    away, room = np.full((2, row.size), np.inf)
    chosen: list[int] = []
    worst = np.array([], int) if error is None else _worst(error[:, : rows * block, : columns * block], block)
    for k in range(min(count, row.size)):
        score[chosen] = -1
        best = int(score.argmax()) if k < count - 1 or not len(worst) else int(worst[room[worst].argmax()])
        chosen.append(best)
        away = np.minimum(away, np.linalg.norm(direction - direction[:, best : best + 1], axis=0))
        room = np.minimum(room, np.hypot(row - row[best], column - column[best]) / min(rows, columns))
        # points closer than a third of the picture are crowded; much larger distances do not help
        score = (away + 0.2 * np.minimum(room, 1)) * np.minimum(1, 3 * room) ** 2 * worth
    center = block // 2
    return sorted((int(row[k]) * block + center, int(column[k]) * block + center) for k in chosen)


def _worst(error: np.ndarray, block: int) -> np.ndarray:
    """The blocks with errors about the 90th percentile, root mean square over bands and pixels."""
    bands, height, width = error.shape
    squares = np.nan_to_num(error.astype(np.float64) ** 2, posinf=0)
    power = squares.reshape(bands, height // block, block, width // block, block).mean(axis=(0, 2, 4)).ravel()
    first, last = (round(share * (power.size - 1)) for share in WORST)
    return np.argsort(power, kind="stable")[first : last + 1]

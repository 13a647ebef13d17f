"""The row convolution, the patches and the covariance sum against the usual ways to write them.

Every comparison first checks that all ways agree, then times them in turns (`benchmarks.timing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.timing import check_agreement, time_in_turns
from cassi.kernels.convolution import convolve_rows
from cassi.kernels.covariance import covariance_sum
from cassi.kernels.patches import aggregate_patches, extract_patches

EQUAL = 0.9  # the best other way is at most a tenth faster


class Row(NamedTuple):
    """One size: what was timed, our milliseconds, and those of each other way."""

    task: str
    size: str
    milliseconds: float
    others: dict[str, float]

    @property
    def speedup(self) -> float:
        """Time of the best other way over ours; above 1 ours is faster."""
        return self.others[self.best] / self.milliseconds

    @property
    def best(self) -> str:
        """Name of the fastest other way."""
        return min(self.others, key=self.others.__getitem__)


def siblings(device: torch.device, *, quick: bool = False) -> Iterator[str]:
    """A table for each primitive, as Markdown, each as soon as it is measured.

    Args:
        device: CPU or CUDA.
        quick: a handful of small sizes.
    """
    if quick:
        yield markdown(convolution_speed((100, 1000), (3, 10, 30), seconds=0.1, device=device))
        yield markdown(patches_speed((1,), (64,), ((3, 1), (8, 4), (7, 3)), seconds=0.1, device=device))
        yield markdown(covariance_speed((1, 64), (4, 28), (4, 16), seconds=0.1, device=device))
    else:
        for rows in (convolution_speed(device=device), patches_speed(device=device), covariance_speed(device=device)):
            yield markdown(rows)


def markdown(rows: Iterable[Row]) -> str:
    """The rows as a table for each task, each with a line that sums it up."""
    tasks: dict[str, list[Row]] = {}
    for row in rows:
        tasks.setdefault(row.task, []).append(row)
    parts = []
    for task, found in tasks.items():
        ways = list(dict.fromkeys(way for row in found for way in row.others))
        head = [task, "cassi [ms]", *(f"{way} [ms]" for way in ways), "best other / cassi"]
        lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for row in found:
            others = [f"{row.others[way]:.3g}" if way in row.others else "" for way in ways]
            cells = [row.size, f"{row.milliseconds:.3g}", *others, f"{row.speedup:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines) + f"\n\n{summary(found)}")
    return "\n\n".join(parts)


def summary(rows: Sequence[Row]) -> str:
    """How many sizes of one task are as fast as the best other way, within a tenth, and the worst of them."""
    equal = sum(row.speedup >= EQUAL for row in rows)
    worst = min(rows, key=lambda row: row.speedup)
    return (
        f"{rows[0].task}: on {equal} of {len(rows)} sizes at least {EQUAL} of the speed of the best other way; "
        f"worst {worst.speedup:.2f} ({worst.best}, {worst.size})."
    )


def milliseconds(
    ways: Mapping[str, Callable[[], Tensor]], *, seconds: float, device: torch.device | str
) -> dict[str, float]:
    """Milliseconds a call of each way in its fastest turn, after a check that all agree.

    Calls of a few microseconds are lengthened by all that the machine does besides, and never shortened.

    Raises:
        RuntimeError: they do not.
    """
    check_agreement(ways)
    times = time_in_turns(ways, device=torch.device(device), seconds=seconds, max_turns=50, quantile=0.0)
    return {way: 1e3 * t for way, t in times.items()}


def convolution_double_loop(a: Tensor, v: Tensor) -> Tensor:
    """The loops over both axes."""
    y = a.new_zeros(len(a), a.shape[1] + v.shape[1] - 1)
    for i in range(a.shape[1]):
        for j in range(v.shape[1]):
            y[:, i + j] += a[:, i] * v[:, j]
    return y


def convolution_grouped(a: Tensor, v: Tensor) -> Tensor:
    """One conv1d with a group for each row: v is the signal, padded by N - 1, and a, flipped, the kernel."""
    kernel = a.flip(1)[:, None]
    return F.conv1d(v[None], kernel, padding=a.shape[1] - 1, groups=len(a))[0]


def convolution_fft(a: Tensor, v: Tensor) -> Tensor:
    """Product of the transforms at the full length."""
    length = a.shape[1] + v.shape[1] - 1
    y: Tensor = torch.fft.irfft(torch.fft.rfft(a, length) * torch.fft.rfft(v, length), length)
    return y


def unfold(x: Tensor, size: int, stride: int) -> Tensor:
    """`F.unfold` of single-channel images (B, H, W), in the shape of `extract_patches`."""
    batch, height, width = x.shape
    shape = (batch, size, size, (height - size) // stride + 1, (width - size) // stride + 1)
    return F.unfold(x[:, None], size, stride=stride).view(shape)


def fold(patches: Tensor, shape: tuple[int, int], stride: int) -> Tensor:
    """`F.fold` of what `unfold` gives."""
    batch, size = patches.shape[:2]
    return F.fold(patches.view(batch, size * size, -1), shape, size, stride=stride)[:, 0]


def covariance_bmm(x: Tensor) -> Tensor:
    """One product an image, then the sum over images."""
    z = x.flatten(2)
    return torch.bmm(z, z.mT).sum(0)


def covariance_of_columns(x: Tensor) -> Tensor:
    """One product of the images rearranged to (C, N H W)."""
    z = x.transpose(0, 1).reshape(x.shape[1], -1)
    return z @ z.t()


def covariance_of_rows(x: Tensor) -> Tensor:
    """One product of the images rearranged to (N H W, C)."""
    z = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
    return z.t() @ z


def covariance_loop(x: Tensor) -> Tensor:
    """The loop over images and pixels that adds outer products."""
    total = x.new_zeros(x.shape[1], x.shape[1])
    for image in x:
        for spectrum in image.flatten(1).t():
            total += torch.outer(spectrum, spectrum)
    return total


def convolution_speed(
    num_rows: tuple[int, ...] = (100, 1000, 10_000, 100_000),
    lengths: tuple[int, ...] = (3, 5, 7, 10, 30, 100, 300, 1000),
    *,
    seconds: float = 1.0,
    device: torch.device | str = "cpu",
) -> Iterator[Row]:
    """`convolve_rows` against the double loop, the grouped conv1d (either way round) and the transform."""
    generator = torch.Generator().manual_seed(0)
    for rows in num_rows:
        for n in lengths:
            for m in lengths:
                if m > n or rows * (n + m) > 2.1e7:
                    continue
                a = torch.rand(rows, n, generator=generator).to(device)
                v = torch.rand(rows, m, generator=generator).to(device)
                ways = {"ours": partial(convolve_rows, a, v), "fft": partial(convolution_fft, a, v)}
                if n * m <= 100:
                    ways["double loop"] = partial(convolution_double_loop, a, v)
                if rows * n * m <= 5e8:
                    ways["conv1d"] = partial(convolution_grouped, a, v)
                    ways["conv1d, swapped"] = partial(convolution_grouped, v, a)
                t = milliseconds(ways, seconds=seconds, device=device)
                yield Row("convolution", f"{rows} x ({n}, {m})", t.pop("ours"), t)


def patches_speed(
    batches: tuple[int, ...] = (1, 8),
    lengths: tuple[int, ...] = (64, 256, 512),
    sizes: tuple[tuple[int, int], ...] = ((3, 1), (5, 1), (8, 1), (8, 2), (8, 4), (8, 8), (6, 3), (7, 3), (16, 4)),
    *,
    seconds: float = 1.0,
    device: torch.device | str = "cpu",
) -> Iterator[Row]:
    """`extract_patches` and `aggregate_patches` against `F.unfold` and `F.fold` on square images."""
    generator = torch.Generator().manual_seed(0)
    for batch in batches:
        for length in lengths:
            for p, s in sizes:
                n = (length - p) // s * s + p
                if batch * (n // s * p) ** 2 > 2e7:
                    continue
                x = torch.rand(batch, n, n, generator=generator).to(device)
                patches = extract_patches(x, p, s)
                size = f"{batch} x {n}^2, patch {p}, stride {s}"
                ways = {"ours": partial(extract_patches, x, p, s), "unfold": partial(unfold, x, p, s)}
                t = milliseconds(ways, seconds=seconds, device=device)
                yield Row("extract patches", size, t.pop("ours"), t)
                ways = {
                    "ours": partial(aggregate_patches, patches, (n, n), s),
                    "fold": partial(fold, patches, (n, n), s),
                }
                t = milliseconds(ways, seconds=seconds, device=device)
                yield Row("aggregate patches", size, t.pop("ours"), t)


def covariance_speed(
    num_images: tuple[int, ...] = (1, 4, 64, 1024, 16384),
    num_bands: tuple[int, ...] = (4, 28, 128, 512),
    lengths: tuple[int, ...] = (1, 2, 4, 8, 16, 64, 256),
    *,
    seconds: float = 1.0,
    device: torch.device | str = "cpu",
) -> Iterator[Row]:
    """`covariance_sum` against the loop, einsum, the batched product and one product of a permuted copy."""
    generator = torch.Generator().manual_seed(0)
    for n in num_images:
        for c in num_bands:
            for length in lengths:
                if not 1e3 <= n * c * length**2 <= 2e7 or n * (c * length) ** 2 > 3e9:
                    continue
                x = torch.rand(n, c, length, length, generator=generator).to(device)
                ways = {
                    "ours": partial(covariance_sum, x),
                    "einsum": partial(torch.einsum, "nchw,ndhw->cd", x, x),
                    "one product": partial(covariance_of_columns, x),
                    "one product, rows": partial(covariance_of_rows, x),
                }
                if n * c * c <= 1e8:
                    ways["bmm"] = partial(covariance_bmm, x)
                if n * length**2 <= 2000:
                    ways["loop"] = partial(covariance_loop, x)
                t = milliseconds(ways, seconds=seconds, device=device)
                yield Row("covariance", f"({n}, {c}, {length}, {length})", t.pop("ours"), t)

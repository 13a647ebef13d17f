"""Make the pictures of the documentation and the table of solvers from the example measurement.

    python docs/make_figures.py

Needs the extra `test`, and Chromium with its driver for the pictures of the report.
"""

from __future__ import annotations

import base64
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from selenium import webdriver

import cassi
from cassi import CASSI
from cassi.cli.main import main as main_of_cassi
from cassi.files import read_measurement
from cassi.looking.color import cube_to_srgb
from cassi.looking.figures import save_figures
from cassi.looking.metrics import score
from cassi.looking.report_data import report_of
from cassi.looking.report_page import write_report
from cassi.optics.detector import detect
from cassi.optics.measurement import Measurement
from cassi.optics.multi_shot import MultiShot
from cassi.photograph.picture import expected_response
from cassi.photograph.similarity import Similarity
from cassi.running.result import write_result
from cassi.simulation.camera import random_mask, side_photograph

HERE = Path(__file__).parent
SOLVERS = ("least-squares", "admm-tv", "fista-tv", "gap-tv", "subspace", "auto")


def compare(measurement: Measurement) -> dict[str, cassi.Reconstruction]:
    """Every solver with its defaults; writes the rows of the table in choosing-a-solver.md."""
    results = {}
    page = HERE / "choosing-a-solver.md"
    text = page.read_text(encoding="utf-8")
    for solver in SOLVERS:
        results[solver] = cassi.reconstruct(measurement, solver=solver, uncertainty=solver == "auto")
        scores = score(results[solver].cube.cpu(), truth=measurement.cube)
        cells = [f"{scores['psnr']:.2f}", f"{scores['sam']:.1f}"]
        row = f"| `{solver}` | {' | '.join(cells)} | {100 * results[solver].residual:.2f} |"
        text, count = re.subn(rf"^\| `{solver}` \| [\d.]+ \|.*$", row, text, flags=re.MULTILINE)
        if count != 1:
            raise RuntimeError(f"{page}: expected one row of figures for {solver}, found {count}")
    page.write_text(text, encoding="utf-8")
    return results


def side_by_side(measurement: Measurement, results: dict[str, cassi.Reconstruction]) -> Figure:
    """Every solver's cube and the truth as one would see them."""
    pictures = {name: one.cube.cpu().numpy() for name, one in results.items()} | {"truth": measurement.cube}
    figure = Figure(figsize=(10.5, 5.6), layout="constrained")
    places = figure.subplots(2, -(-len(pictures) // 2)).flat
    for axes in places[len(pictures) :]:
        axes.remove()
    for axes, (name, cube) in zip(places, pictures.items(), strict=False):
        axes.imshow(cube_to_srgb(np.asarray(cube), measurement.wavelengths, white=1.0))
        axes.set_title(name, loc="left", fontsize=10)
        axes.axis("off")
    return figure


def first_page(measurement: Measurement, result: cassi.Reconstruction) -> Figure:
    """Snapshot, mask and cube side by side, and four bands of the cube in their colors."""
    cube, wavelengths = result.cube.cpu().numpy(), measurement.wavelengths
    if wavelengths is None:
        raise ValueError("the example has no wavelengths")
    bands = np.linspace(2, len(cube) - 4, 4).round().astype(int)
    tiles = []
    for band in bands:
        single = np.zeros_like(cube)
        single[band] = 8 * cube[band]
        tiles.append(cube_to_srgb(single, wavelengths, white=1.0))
    mosaic = np.concatenate([np.concatenate(tiles[:2], axis=1), np.concatenate(tiles[2:], axis=1)])
    colored = cube_to_srgb(cube, wavelengths, white=1.0)
    names = ", ".join(f"{wavelengths[band]:.0f}" for band in bands)
    panels = {
        "snapshot, 256 x 310 pixels": measurement.y,
        "mask": measurement.mask,
        f"cube, {len(cube)} bands": colored,
        f"bands at {names} nm": mosaic,
    }
    figure = Figure(figsize=(10, 2.75), layout="constrained")
    widths = [panel.shape[1] / panel.shape[0] for panel in panels.values()]
    for axes, (title, panel) in zip(figure.subplots(1, 4, width_ratios=widths), panels.items(), strict=True):
        axes.imshow(panel, cmap="gray")
        axes.set_title(title, loc="left", fontsize=9)
        axes.axis("off")
    return figure


def draw_error(axes: Axes, error: np.ndarray, title: str, highest: float) -> None:
    """Root mean square over the bands (C, H, W) as a map, with its color bar."""
    image = axes.imshow(np.sqrt((error**2).mean(0)), vmin=0, vmax=highest, cmap="magma")
    axes.set_title(title, loc="left", fontsize=10)
    axes.figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, extend="max")


def with_photograph(measurement: Measurement, alone: cassi.Reconstruction) -> Figure:
    """A color photograph, moved and turned, and what it does to the cube of the example: pictures and errors."""
    if measurement.cube is None or measurement.wavelengths is None:
        raise ValueError("the example has no truth or no wavelengths")
    cube = torch.from_numpy(measurement.cube)
    R = torch.from_numpy(expected_response(3, measurement.wavelengths, len(cube)))
    generator = torch.Generator().manual_seed(0)
    picture = side_photograph(cube, R, pose=Similarity(1.5, 1.0, 2.0, -2.0), full_well=1e4, generator=generator)
    joint = cassi.reconstruct(measurement, side=cassi.SidePicture(picture.numpy()))
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    (first, second, third), (fourth, fifth, sixth) = figure.subplots(2, 3)

    def draw(axes: Axes, image: np.ndarray, title: str, **style: object) -> None:
        axes.imshow(image, **style)
        axes.set_title(title, loc="left", fontsize=10)
        axes.axis("off")

    truth = measurement.cube
    draw(first, np.sqrt(np.clip(picture.numpy() / np.quantile(picture.numpy(), 0.995), 0, 1)), "photograph, as given")
    draw(fourth, cube_to_srgb(truth, measurement.wavelengths, white=1.0), "truth")
    for result, name, top, below in ((alone, "without", second, fifth), (joint, "with", third, sixth)):
        x = result.cube.cpu().numpy()
        psnr = score(result.cube.cpu(), truth=truth)["psnr"]
        draw(top, cube_to_srgb(x, measurement.wavelengths, white=1.0), f"{name} it, {psnr:.1f} dB")
        draw_error(below, x - truth, f"error {name} it", 0.2)
        below.axis("off")
    return figure


def several_shots(measurement: Measurement) -> Figure:
    """The scene of the example in one, two and four shots through random masks: cubes and errors."""
    if measurement.cube is None:
        raise ValueError("the example has no truth")
    truth, cube = measurement.cube, torch.from_numpy(measurement.cube)
    generator = torch.Generator().manual_seed(0)
    size = (int(cube.shape[-2]), int(cube.shape[-1]))
    shots = [CASSI(random_mask(*size, generator=generator), measurement.shifts) for _ in range(4)]
    figure = Figure(figsize=(10, 5), layout="constrained")
    for count, (above, below) in zip((1, 2, 4), figure.subplots(2, 3).T, strict=True):
        A = MultiShot(tuple(shots[:count])) if count > 1 else shots[0]
        y = detect(A.forward(cube), full_well=1e4, generator=torch.Generator().manual_seed(1)).y
        x = cassi.reconstruct(y, A, wavelengths=measurement.wavelengths).cube.cpu()
        above.imshow(cube_to_srgb(x.numpy(), measurement.wavelengths, white=1.0))
        above.set_title(
            f"{count} shot{'s' * (count > 1)}, {score(x, truth=truth)['psnr']:.1f} dB", loc="left", fontsize=10
        )
        draw_error(below, x.numpy() - truth, "error", 0.2)
    for axes in figure.axes:
        axes.axis("off")
    return figure


def frames_together(folder: Path) -> Figure:
    """A film of a scene that moves, each frame alone and together with those beside it: a frame, errors, all PSNRs."""
    film, alone, together = folder / "film.h5", folder / "alone", folder / "together.h5"
    simulated = ["--size", "128x128", "--frames", "8", "--full-well", "10000", "--quiet", "--output", str(film)]
    options = ["--figures", "none", "--quiet"]
    for arguments in (
        ["simulate", *simulated],
        ["reconstruct", str(film), "--output", str(alone), *options],
        ["reconstruct", str(film), "--sequence", "--output", str(together), *options],
    ):
        if main_of_cassi(arguments) != 0:
            raise RuntimeError(f"cassi {' '.join(arguments)} failed")
    with h5py.File(film) as file, h5py.File(together) as joined:
        truth, wavelengths = file["cube"][:], file["wavelengths"][:]
        cubes = {"each frame alone": [], "together with those beside it": list(joined["cube"][:])}
    for path in sorted(alone.glob("*_cube.h5")):
        with h5py.File(path) as file:
            cubes["each frame alone"].append(file["cube"][:])
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    grid = figure.add_gridspec(2, 3)
    scores = figure.add_subplot(grid[:, 2])
    for k, (name, frames) in enumerate(cubes.items()):
        row = [figure.add_subplot(grid[k, column]) for column in range(2)]
        shown = len(frames) // 2
        psnr = [score(torch.from_numpy(x), truth=t)["psnr"] for x, t in zip(frames, truth, strict=True)]
        row[0].imshow(cube_to_srgb(frames[shown], wavelengths, white=1.0))
        row[0].set_title(name, loc="left", fontsize=10)
        draw_error(row[1], frames[shown] - truth[shown], "its error", 0.15)
        scores.plot(range(1, len(psnr) + 1), psnr, marker="o", label=f"{name}, {np.mean(psnr):.1f} dB")
        for axes in row:
            axes.axis("off")
    scores.set(xlabel="frame", ylabel="PSNR [dB]")
    scores.grid(alpha=0.3)
    scores.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def sample_report(measurement: Measurement) -> None:
    """A report to look at, docs/sample-report.html: half of the example's rows, which are a snapshot of their own."""
    if measurement.cube is None:
        raise ValueError("the example has no truth")
    rows = slice(8, 136)
    bad = None if measurement.bad_pixels is None else measurement.bad_pixels[rows]
    part = replace(measurement, y=measurement.y[rows], mask=measurement.mask[rows], cube=measurement.cube[:, rows])
    part = replace(part, bad_pixels=bad)
    result = cassi.reconstruct(part, uncertainty=True)
    write_report(HERE / "sample-report.html", report_of(result), overwrite=True)


def photograph(page: Path, *, dark: bool, width: int, height: int) -> bytes:
    """A page as Chromium draws it."""
    options = webdriver.ChromeOptions()
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking", "hide-scrollbars"):
        options.add_argument(f"--{flag}")
    options.binary_location = shutil.which("chromium") or ""
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        driver.get(page.as_uri())
        driver.execute_async_script(
            "const done = arguments[0], wait = () => document.documentElement.dataset.ready ? "
            "setTimeout(done, 500) : setTimeout(wait, 50); wait()"
        )
        return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])
    finally:
        driver.quit()


def main() -> None:
    measurement = read_measurement(HERE.parent / "data" / "example.h5")
    results = compare(measurement)
    save_figures({"first-page": first_page(measurement, results["auto"])}, HERE / "figures", dpi=90)
    save_figures({"solvers": side_by_side(measurement, results)}, HERE / "figures", dpi=72)
    save_figures({"side": with_photograph(measurement, results["auto"])}, HERE / "figures", dpi=72)
    save_figures({"shots": several_shots(measurement)}, HERE / "figures", dpi=72)
    with tempfile.TemporaryDirectory() as folder:
        save_figures({"sequence": frames_together(Path(folder))}, HERE / "figures", dpi=72)
        result, page = Path(folder) / "example_cube.h5", Path(folder) / "report.html"
        write_result(result, results["auto"])
        write_report(page, result)
        sample_report(measurement)
        for name, dark in (("report-light", False), ("report-dark", True)):
            (HERE / "figures" / f"{name}.png").write_bytes(photograph(page, dark=dark, width=1280, height=1000))


if __name__ == "__main__":
    main()

"""Which camera to build: simulate and reconstruct a grid of cameras, and say what each choice is worth."""

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tqdm import tqdm

from cassi.cli.places import check_folder
from cassi.cli.shell import say
from cassi.errors import counted


def run(args: argparse.Namespace) -> int:
    """Evaluate what is left of the grid, then write the table and the figures."""
    from cassi.looking.camera_figures import choices_figure
    from cassi.looking.figures import save_figures
    from cassi.running.design import grid, scenes_of, study, values_between

    steps, elements, bands = ([int(v) for v in values_between(t)] for t in (args.step, args.mask_element, args.bands))
    designs = grid(steps, elements, bands, values_between(args.electrons, whole=False))
    scenes = scenes_of(args.scenes, args.num_scenes)
    output = check_folder(Path(args.output))
    count = f"{counted(len(designs), 'camera')}, {counted(len(scenes), 'scene')}"
    say(args, f"{count} of {args.size} x {args.size} px: {', '.join(scenes)}")
    bar = partial(tqdm, unit="run", disable=args.quiet or None)
    scores = study(designs, scenes, output, size=args.size, quality=args.quality, progress=bar)
    rows = [asdict(design) | quality._asdict() for design, quality in scores.items()]
    angles = choices_figure(rows, value="angle", label="spectral angle [°]")
    save_figures({"psnr": choices_figure(rows), "angle": angles}, output, dpi=150)
    best = sorted(scores.items(), key=lambda item: item[1].psnr, reverse=True)
    say(args, f"{'step':>5} {'element':>8} {'bands':>6} {'electrons':>10} {'PSNR':>9} {'angle':>8}")
    for design, quality in best[:5] if len(best) <= 6 else [*best[:5], best[-1]]:
        camera = f"{design.step:>5} {design.mask_element:>8} {design.bands:>6} {design.electrons:>10g}"
        say(args, f"{camera} {quality.psnr:>6.2f} dB {quality.angle:>7.2f}°")
    say(args, f"the best five and the last of {len(best)} -> {output}/design.csv, psnr.png, angle.png")
    return 0

"""Deliberate faults: each is put into a copy of the package, and the tests named beside it must go red.

    python tests/faults.py                 all of them, some minutes
    python tests/faults.py tv gap          those whose name contains "tv" or "gap"

A fault is a text and what replaces it. Prints a table; the exit code is 0 if the tests were green without faults and
every fault was caught. A fault whose text is no longer found is reported as stale: write it anew.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Fault(NamedTuple):
    """One substitution in one file, the test file that must notice it, and a -k expression to keep it short."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    select: str = ""
    compiled: bool = False


SUM, OPERATOR, TV = "cassi/kernels/shift_sum.py", "cassi/optics/single_disperser.py", "cassi/priors/tv.py"
GAP, ADMM, FISTA = "cassi/solvers/gap.py", "cassi/solvers/admm.py", "cassi/solvers/fista.py"
SUBSPACE, FINAL = "cassi/solvers/subspace_tv.py", "cassi/choice/refine.py"
HELD_OUT, CANDIDATES = "cassi/choice/held_out.py", "cassi/choice/candidates.py"
SQUARES, RESULT, COMPILED = "cassi/solvers/least_squares.py", "cassi/solvers/loop.py", "cassi/kernels/cpu.py"

FAULTS = [
    # the kernels
    Fault(
        "bands disperse to the other side", SUM,
        "y[..., d - d_min : d - d_min + width].addcmul_(x",
        "y[..., max(shifts) - d : max(shifts) - d + width].addcmul_(x",
        "test_kernels_shift_sum.py", "hand or voxel",
    ),
    Fault(
        "detector width from the outer bands", SUM,
        "return width + max(shifts) - min(shifts)",
        "return width + abs(shifts[-1] - shifts[0])",
        "test_kernels_shift_sum.py", "voxel",
    ),
    Fault(
        "strided adjoint for a negative step too", SUM,
        "if step is not None and step >= 0:",
        "if step is not None:",
        "test_kernels_shift_sum.py", "voxel",
    ),
    Fault(
        "adjoint forgets the sign of the mask", SUM,
        "torch.mul(skewed, mask, out=x)",
        "torch.mul(skewed, mask.abs(), out=x)",
        "test_kernels_shift_sum.py", "voxel",
    ),
    Fault(
        "strided adjoint takes its input as contiguous", SUM,
        "(*y.stride()[:-2], step * y.stride(-1), y.stride(-2), y.stride(-1))",
        "(*y.stride()[:-2], step, y.shape[-1], 1)",
        "test_kernels_shift_sum.py", "layout",
    ),
    Fault(
        "backward of forward without the mask", SUM,
        "grad_x = shift_back(grad_y, mask, ctx.shifts)",
        "grad_x = shift_back(grad_y, torch.ones_like(mask), ctx.shifts)",
        "test_kernels_shift_sum.py", "gradient",
    ),
    Fault(
        "gradient in a shared mask averaged over bands", SUM,
        "return stacked.sum(0) if mask.ndim == 2",
        "return stacked.mean(0) if mask.ndim == 2",
        "test_kernels_shift_sum.py", "gradient",
    ),
    Fault(
        "stale buffer under autograd", SUM,
        "    if _wanted_gradient(*inputs):",
        "    if False:",
        "test_kernels_shift_sum.py", "refused",
    ),
    Fault(
        "data step of plain GAP accelerated", SUM,
        "    if accelerate:\n        misfit",
        "    if True:\n        misfit",
        "test_optics_single_disperser.py", "data_step",
    ),
    Fault(
        "compiled adjoint overwrites instead of adding", COMPILED,
        "                    if add:\n",
        "                    if False:\n",
        "test_kernels_shift_sum.py", "overwritten", compiled=True,
    ),
    Fault(
        "compiled kernels drop the last range of rows", COMPILED,
        "count * k // pieces for k in range(pieces + 1)",
        "count * k // (pieces + 1) for k in range(pieces + 1)",
        "test_kernels_cpu.py", "ranges or more_threads", compiled=True,
    ),
    # the operator
    Fault(
        "gram from the mask, not its square", OPERATOR,
        "squared = self.mask**2",
        "squared = self.mask.abs()",
        "test_optics_single_disperser.py", "dense or hand",
    ),
    Fault(
        "gram with the weights, not their squares", OPERATOR,
        "gram * self.weights**2",
        "gram * self.weights",
        "test_optics_single_disperser.py", "dense or hand",
    ),
    Fault(
        "pseudo-inverse regularized at dark columns", OPERATOR,
        "return torch.where(lit, 1 / torch.where(lit, gram, 1), 0)",
        "return 1 / (gram + 1e-9)",
        "test_optics_single_disperser.py", "dense",
    ),
    Fault(
        "prox with twice the penalty", OPERATOR,
        "/ (rho + self._gram_or_computed())",
        "/ (2 * rho + self._gram_or_computed())",
        "test_optics_single_disperser.py", "dense",
    ),
    Fault(
        "norm squared", OPERATOR,
        ".max().sqrt())",
        ".max())",
        "test_optics_single_disperser.py", "dense",
    ),
    Fault(
        "right inverse shares among all bands", OPERATOR,
        "self.open_count().clamp(min=1)",
        "self.num_bands",
        "test_optics_single_disperser.py", "right_inverse",
    ),
    Fault(
        "gram handed out itself", OPERATOR,
        "else self._gram.clone()",
        "else self._gram",
        "test_optics_single_disperser.py", "hidden",
    ),
    Fault(
        "mask shared with the caller", OPERATOR,
        "return tensor if tensor.requires_grad else tensor.clone()",
        "return tensor",
        "test_optics_single_disperser.py", "keeps_its_own",
    ),
    Fault(
        "autograd graph kept in the operator", OPERATOR,
        "if not (self.mask.requires_grad or",
        "if not (False or",
        "test_optics_single_disperser.py", "two_backward or learned",
    ),
    Fault(
        "to() loses the weights", OPERATOR,
        "return CASSI(mask, self.shifts, weights)",
        "return CASSI(mask, self.shifts)",
        "test_optics_single_disperser.py", "to_makes",
    ),
    # total variation
    Fault("dual step too long", TV, "STEP = 1 / 8", "STEP = 1 / 3", "test_priors_tv.py", "outside or certif or gap"),
    Fault(
        "warm start thrown away", TV,
        "v.new_zeros((2, *v.shape)) if dual is None else dual.clone()",
        "v.new_zeros((2, *v.shape))",
        "test_priors_tv.py", "warm",
    ),
    Fault(
        "warm start modified", TV,
        "if dual is None else dual.clone()",
        "if dual is None else dual",
        "test_priors_tv.py", "warm",
    ),
    Fault(
        "total variation never coupled", TV,
        "(squared.sum(-3) if coupled else squared).sqrt().sum()",
        "squared.sqrt().sum()",
        "test_priors_tv.py", "tv_is or tv_by",
    ),
    Fault(
        "certificate that always certifies", TV,
        "- (d * q64).sum())",
        "- (w * magnitude).sum())",
        "test_priors_tv.py", "certif",
    ),
    Fault(
        "continuation upside down", TV,
        "max(1.0, self._start * self._decay**k)",
        "min(1.0, self._start * self._decay**k)",
        "test_priors_tv.py", "denoiser",
    ),
    Fault(
        "compiled dual step too long", COMPILED,
        "qx.dtype.type(0.125)",
        "qx.dtype.type(0.3)",
        "test_priors_tv.py", "compiled_path or two_pixels", compiled=True,
    ),
    # the solvers
    Fault(
        "GAP accelerated when asked not to be", GAP,
        "accelerate=accelerate)  # the three",
        "accelerate=True)  # the three",
        "test_solvers_all.py", "iterates or objective",
    ),
    Fault(
        "change measured before denoising", GAP,
        "        overwrite(x, denoise(x, k))\n        change = relative_change(x, v)\n",
        "        change = relative_change(x, v)\n        overwrite(x, denoise(x, k))\n",
        "test_solvers_all.py", "first_projection or iterates",
    ),
    Fault(
        "GAP writes into its start", GAP,
        "else x0.clone(memory_format=torch.contiguous_format)",
        "else x0",
        "test_solvers_all.py", "not_modified",
    ),
    Fault(
        "ADMM weighs the prior by rho", ADMM,
        "TVDenoiser(tv_weight / penalty",
        "TVDenoiser(tv_weight * penalty",
        "test_solvers_all.py", "tv_prox or certified",
    ),
    Fault(
        "momentum one step ahead", FISTA,
        "momentum = (t - 1) / t_new",
        "momentum = t / t_new",
        "test_solvers_all.py", "iterates",
    ),
    Fault(
        "momentum never restarts", FISTA,
        "t = torch.where(objective > old, 1, t)",
        "pass",
        "test_solvers_all.py", "restarts or settles",
    ),
    Fault(
        "damping squared", SQUARES,
        "A.adjoint(y / (A.gram_diag() + damping))",
        "A.adjoint(y / (A.gram_diag() + damping**2))",
        "test_solvers_all.py", "ridge",
    ),
    Fault(
        "conjugate gradients on an inconsistent system", SQUARES,
        "if gram is None and damping == 0:",
        "if False:",
        "test_solvers_all.py", "ridge",
    ),
    Fault(
        "conjugate gradients with the old direction", SQUARES,
        "rz / torch.where(rz_old > 0, rz_old, 1)",
        "rz_old / torch.where(rz_old > 0, rz_old, 1)",
        "test_solvers_all.py", "conjugate or ridge",
    ),
    Fault(
        "stops on the residual", RESULT,
        "if change < self._tol:",
        "if residual < self._tol:",
        "test_solvers_loop.py",
    ),
    Fault(
        "NaN goes on", RESULT,
        "if not (math.isfinite(residual) and math.isfinite(change)):",
        "if False:",
        "test_solvers_loop.py",
    ),
    Fault(
        "the monitor cannot stop", RESULT,
        "        elif stop:\n",
        "        elif False:\n",
        "test_solvers_loop.py",
    ),
    # the default solver
    Fault(
        "noise is not damped", SUBSPACE,
        "gamma, omega = (1 - a.clamp(max=1))",
        "gamma, omega = (1 - 0 * a.clamp(max=1))",
        "test_solvers_subspace_tv.py", "lines or objective",
    ),
    Fault(
        "negative radiance is only pushed back", SUBSPACE,
        "        u.copy_(p)\n",
        "",
        "test_solvers_subspace_tv.py", "lines or negative_radiance",
    ),
    Fault(
        "the compiled multiplier is not kept", COMPILED,
        "            u[j] = p\n",
        "            u[j] = zero\n",
        "test_solvers_subspace_tv.py", "lines or negative_radiance", compiled=True,
    ),
    Fault(
        "the next run starts from nothing", SUBSPACE,
        "z, q = state.z.clone(), state.q.clone()",
        "z, q = 0 * state.z, state.q.clone()",
        "test_solvers_subspace_tv.py",
    ),
    Fault(
        "the held-out pixels are seen", HELD_OUT,
        "return Split(A, y, held, A.leave_out(keep), y * keep)",
        "return Split(A, y, held, A, y)",
        "test_choice_automatic.py",
    ),
    Fault(
        "the worst candidate wins", CANDIDATES,
        "error.held_out_error < (1 - margin)",
        "error.held_out_error > (1 - margin)",
        "test_choice_automatic.py",
    ),
    Fault(
        "the one ahead at half-way is dropped", CANDIDATES,
        "return halfway > ahead_of",
        "return halfway < ahead_of",
        "test_choice_automatic.py", "behind",
    ),
    Fault(
        "no other prior is tried where there is noise", FINAL,
        "    if reference >= effort.settled * before:",
        "    if reference <= effort.settled * before:",
        "test_choice_automatic.py", "still_gains_much",
    ),
    Fault(
        "the non-local prior always wins", FINAL,
        "        if chosen.kept_error <= (1 + CHANCE) * reference:\n",
        "        if True:\n",
        "test_choice_automatic.py", "goes_on",
    ),
    Fault(
        "the non-local prior never wins", FINAL,
        "        if chosen.kept_error <= (1 + CHANCE) * reference:\n",
        "        if False:\n",
        "test_choice_automatic.py", "ends_with or best",
    ),
    Fault(
        "compiled row kernels are not reversed", COMPILED,
        "                    p = last - i\n",
        "                    p = i + three\n",
        "test_kernels_convolution.py", "numpy", compiled=True,
    ),
    Fault(
        "compiled groups are not shrunk", COMPILED,
        "x_kept[a * pixels + j, k] = kept[a, j]",
        "x_kept[a * pixels + j, k] = plane[a, j]",
        "test_priors_nonlocal_lowrank.py", "agree", compiled=True,
    ),
    Fault(
        "a hot pixel is taken for the slit", "cassi/calibration/line_spread.py",
        "along = ndimage.median_filter(light, size=(5, 1), mode=\"nearest\")",
        "along = light",
        "test_calibration_line_spread.py", "hot",
    ),
    # many snapshots and the command line
    Fault(
        "a changed input counts as finished", "cassi/running/many.py",
        "made_from = json.dumps([common, content, frame.index]",
        "made_from = json.dumps([common, frame.path, frame.index]",
        "test_running_many.py", "another_input",
    ),
    Fault(
        "frame 10 before frame 2", "cassi/running/many.py",
        "sorted(find_files(source, leave_out), key=natural)",
        "sorted(find_files(source, leave_out))",
        "test_running_many.py", "natural",
    ),
    Fault(
        "an interrupted frame is written all the same", "cassi/running/many.py",
        "    if turn.over():\n        raise CancelledError",
        "    if False:\n        raise CancelledError",
        "test_running_many.py", "over",
    ),
    Fault(
        "a store's frame is marked before its cube", "cassi/running/stores.py",
        "if mark.any()",
        "if True",
        "test_running_many.py", "zarr_store_goes_on",
    ),
    Fault(
        "the gain of counts per full scale", "cassi/cli/reading.py",
        "self.gain * (m.scale if counts else 1.0)",
        "self.gain",
        "test_cli_reconstruct.py", "electrons_a_count",
    ),
    Fault(
        "a mask turned the other way", "cassi/cli/reading.py",
        "mask[..., ::rows, ::columns]",
        "mask[..., ::columns, ::rows]",
        "test_cli_reconstruct.py", "turned",
    ),
    Fault(
        "a wrong mask is aligned", "cassi/cli/reconstruct.py",
        'check.verdict.startswith("wrong mask")',
        'check.verdict.startswith("right mask")',
        "test_cli_reconstruct.py", "aligned",
    ),
    Fault(
        "frames that do not fit are not counted", "cassi/running/many.py",
        'if not known["ok"]}',
        'if known["ok"] is None}',
        "test_cli_reconstruct.py", "counted",
    ),
    # the house
    Fault(
        "figures loaded with the package", "cassi/__init__.py",
        "from cassi.version import __version__ as __version__\n",
        "import cassi.looking.figures\nfrom cassi.version import __version__ as __version__\n",
        "test_layers.py", "without_files or edges",
    ),
    Fault(
        "the operator knows what stands above it", OPERATOR,
        "from torch import Tensor\n",
        "from torch import Tensor\n\nfrom cassi import result\n",
        "test_layers.py", "storeys",
    ),
]  # fmt: skip


def copy_package(folder: Path) -> None:
    for part in ("cassi", "tests", "scripts"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def run(folder: Path, tests: str, select: str, compiled: bool) -> tuple[int, str]:
    """pytest in a copy, stopping at the first red test; its exit code and that test."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", f"tests/{tests}"]
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "CASSI_COMPILED": str(int(compiled)),
        "PYTHONPATH": str(folder),
    }  # fmt: skip
    result = subprocess.run(
        [*command, *(["-k", select] if select else [])], cwd=folder, env=environment, capture_output=True, text=True
    )
    red = re.search(r"^(?:FAILED|ERROR) tests/[^:]+::(.+?)(?: - .*)?$", result.stdout, re.MULTILINE)
    return result.returncode, red[1] if red else ""


def check(fault: Fault) -> tuple[str, str]:
    """What became of a fault, "caught" or why not, and the test that caught it."""
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        return f"stale: its text occurs {text.count(fault.old)} times", ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_package(folder)
        (folder / fault.file).write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        code, red = run(folder, fault.tests, fault.select, fault.compiled)
    if code == 1:
        return "caught", red
    return "NOT CAUGHT" if code == 0 else f"pytest ended with {code}, not with a red test", red


def check_green(faults: list[Fault]) -> list[str]:
    """The tests named by the faults that are red without any fault."""
    red = []
    with tempfile.TemporaryDirectory() as name:
        copy_package(Path(name))
        for tests, compiled in sorted({(f.tests, f.compiled) for f in faults}):
            select = " or ".join(
                f"({f.select or 'test'})" for f in faults if (f.tests, f.compiled) == (tests, compiled)
            )
            code, test = run(Path(name), tests, select, compiled)
            if code != 0:
                red.append(f"{tests}::{test}")
    return red


def main(words: list[str]) -> int:
    faults = [f for f in FAULTS if not words or any(word in f.name for word in words)]
    red = check_green(faults)
    if red:
        print("red without any fault:", *red)
        return 1
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        outcomes = list(pool.map(check, faults))
    print("| fault | file | outcome | caught by |\n|---|---|---|---|")
    for fault, (outcome, test) in zip(faults, outcomes, strict=True):
        print(f"| {fault.name} | {fault.file} | {outcome} | {test} |")
    caught = sum(outcome == "caught" for outcome, _ in outcomes)
    print(f"\n{caught} of {len(faults)} caught")
    return 0 if caught == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

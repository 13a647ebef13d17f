"""Deliberate faults: each is put into a copy of the package, and the tests named beside it must go red.

    python tests/faults.py                 all of them, some minutes
    python tests/faults.py tv gap          those whose name contains "tv" or "gap"
    python tests/faults.py --stale         those whose place has changed; a second

A fault names a function and an expression or statements in it, compared as syntax: layout, comments and quotes do not
matter. Prints a table; the exit code is 0 if the tests were green without faults and every fault was caught.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FORKS = get_context("forkserver")  # each pytest is a fork of a process that has imported what takes seconds
FORKS.set_forkserver_preload(["torch", "scipy.ndimage", "h5py", "pytest"])


class Fault(NamedTuple):
    """A substitution, the test file that must notice it, and a -k expression to keep it short.

    Attributes:
        place: "solvers/loop.py::Loop.record", of the package.
        old: an expression, statements in a row, or the head of a block, `if x:`; once in that function.
        new: of the same kind.
    """

    name: str
    place: str
    old: str
    new: str
    tests: str
    select: str = ""
    compiled: bool = False

    @property
    def file(self) -> str:
        return self.place.partition("::")[0]

    @property
    def is_head(self) -> bool:
        return self.old.endswith(":")


class StaleError(Exception):
    """The place of a fault is not there, or not once."""


FAULTS = [
    Fault("negative light is taken", "running/preparing.py::_without_black", "check_light(y)", "pass",
        "test_running_front_door.py", "light_is_not"),
    Fault("a plan for other bands is followed", "choice/plan.py::Plan.check_bands",
        "self.vectors.shape[-1] != num_bands", "False", "test_running_front_door.py", "nothing_to_choose"),
    Fault("an inverted mask fits", "optics/mask_match.py::check_mask", "kind = 'inverted'", "kind = 'fits'",
        "test_optics_mask_match.py", "swapped"),
    Fault("the camera may replace an input", "cli/places.py::check_files", "place in taken", "False",
        "test_cli_places.py", "no_file"),
    Fault("stars are hot pixels where light is not spread", "optics/outliers.py::without_impulses",
        "{round(d) for d in m.shifts}", "m.shifts", "test_optics_outliers.py", "not_spread"),
    Fault("hot pixels hide each other", "optics/outliers.py::impulses", "((2, 2), (3, 4), (3, 4))", "((2, 2),)",
        "test_optics_outliers.py", "many_of_them"),
    Fault("blocks begin anywhere", "running/tiling.py", "GRID = 20", "GRID = 1", "test_running_tiling.py", "grids_of"),
    Fault("what comes into sight counts as motion", "solvers/measured_motion.py::measured_motion",
        "variance + blurred(r.square()[None], NEAR)[0]", "variance", "test_solvers_measured_motion.py",
        "something_else"),
    Fault("the motion may be rough", "solvers/measured_motion.py::measured_motion.normal",
        "SMOOTH * _roughness(d) + SMALL * d", "SMALL * d", "test_solvers_measured_motion.py", "dense"),
    Fault("motion is that of reconstructions alone", "solvers/measured_motion.py::measured_motion",
        "v = v + step / step.norm(dim=0).clamp(min=1)", "pass", "test_solvers_measured_motion.py", "is_found"),
    Fault("the photograph's bound is not doubled", "optics/side_view.py::SideView.majorizer",
        "2 * self.stack(self.camera.majorizer(), self._w ** 2 * coupled.view(-1, 1, 1))",
        "self.stack(self.camera.majorizer(), self._w ** 2 * coupled.view(-1, 1, 1))", "test_optics_contract.py",
        "bound and photograph"),
    Fault("the photograph's weights are left out on the way back", "optics/side_view.py::SideView.adjoint",
        "self._side(self.check_measurement(y)) * self._w", "self._side(y)", "test_optics_contract.py",
        "both_directions and photograph"),
    Fault("the pass in one forgets the photograph's row weights", "optics/side_view.py::SideView.subspace_step_",
        "r.add_(s(e)).mul_(s(omega)).mul_(self._w)", "r.add_(s(e)).mul_(s(omega))", "test_optics_side_view.py", "pass",
        True),
    Fault("a picture is turned the other way", "optics/similarity.py::Similarity.sample",
        "(scale * (c * i + s * j), scale * (c * j - s * i))", "(scale * (c * i - s * j), scale * (c * j + s * i))",
        "test_optics_side_view.py", "quarter"),
    Fault("the gain of a photograph is that of its inverse", "calibration/side_response.py::fitted_gain",
        "(s * w).sum((1, 2)) / seen.sum((1, 2)).clamp(min=1e-30)",
        "seen.sum((1, 2)) / (s * w).sum((1, 2)).clamp(min=1e-30)", "test_calibration_side.py", "gain"),
    Fault("bands disperse to the other side", "kernels/shift_sum.py::_shift_sum",
        "y[..., d - min(shifts) : d - min(shifts) + width]", "y[..., max(shifts) - d : max(shifts) - d + width]",
        "test_kernels_shift_sum.py", "hand or voxel"),
    Fault("detector width from the outer bands", "kernels/shift_sum.py::detector_width",
        "width + max(shifts) - min(shifts)", "width + abs(shifts[-1] - shifts[0])", "test_kernels_shift_sum.py",
        "voxel"),
    Fault("strided adjoint for a negative step too", "kernels/shift_sum.py::_shift_back",
        "len(steps) == 1 and min(steps) > 0", "len(steps) == 1", "test_kernels_shift_sum.py", "voxel"),
    Fault("adjoint forgets the sign of the mask", "kernels/shift_sum.py::_shift_back",
        "torch.mul(windows, mask, out=x)", "torch.mul(windows, mask.abs(), out=x)", "test_kernels_shift_sum.py",
        "voxel"),
    Fault("backward of forward without the mask", "kernels/shift_sum.py::shift_sum",
        "partial(shift_back, mask=mask, shifts=shifts)",
        "partial(shift_back, mask=torch.ones_like(mask), shifts=shifts)", "test_optics_contract.py", "derivatives"),
    Fault("a linear map is its own derivative", "kernels/linear.py::_LinearMap.backward",
        "linear_map(grad, adjoint, function)", "linear_map(grad, function, adjoint)", "test_kernels_patches.py",
        "derivatives"),
    Fault("data step of plain GAP accelerated", "optics/protocol.py::Camera.data_step_", "if accelerate:", "if True:",
        "test_optics_contract.py", "step_of_gap"),
    Fault("what dark pixels hold is taken for seen", "optics/single_disperser.py::CASSI.data_step_", "gram > 0",
        "gram >= 0", "test_optics_single_disperser.py", "data_step"),
    Fault("compiled data step drops what was there", "kernels/cpu.py::_spread", "v.shape[0]", "False",
        "test_optics_single_disperser.py", "data_step", True),
    Fault("compiled forward model drops the last row of a block", "kernels/cpu.py::_project", "range(top, bottom)",
        "range(top, bottom - 1)", "test_kernels_shift_sum.py", "voxel", True),
    Fault("compiled data step adds to what was in the other cube", "kernels/cpu.py::data_step", "x is v", "True",
        "test_optics_single_disperser.py", "data_step", True),
    Fault("kernels take what is not contiguous", "kernels/dispatch.py::kernels", "t.is_contiguous()", "True",
        "test_kernels_cpu.py", "what_the_kernels_take", True),
    Fault("what a kernel raises in a thread is lost", "kernels/threads.py::share_out", "helper.result()", "continue",
        "test_kernels_cpu.py", "raises_in_another", True),
    Fault("kernels need a place for compiled code", "kernels/jit.py::jit", "RuntimeError", "ZeroDivisionError",
        "test_kernels_cpu.py", "place_for", True),
    Fault("Triton's subspace step forgets the misfit", "kernels/gpu.py::_subspace_step", "kept + r", "kept",
        "test_kernels_gpu.py", "subspace_step and 3-False", True),
    Fault("light crosses the right border in Triton's dual step", "kernels/gpu.py::_dual_step", "W - 1", "W",
        "test_kernels_gpu.py", "total_variation", True),
    Fault("compiled kernels drop the last range of rows", "kernels/threads.py::share_out", "count * k // pieces",
        "count * k // (pieces + 1)", "test_kernels_cpu.py", "ranges or more_threads", True),
    Fault("gram from the mask, not its square", "optics/single_disperser.py::CASSI.row_variance", "self.mask ** 2",
        "self.mask.abs()", "test_optics_single_disperser.py", "dense or hand"),
    Fault("gram with the weights, not their squares", "optics/single_disperser.py::CASSI.row_variance",
        "self.weights ** 2", "self.weights", "test_optics_single_disperser.py", "dense or hand"),
    Fault("pseudo-inverse regularized at dark columns", "optics/protocol.py::reciprocal",
        "torch.where(lit, 1 / torch.where(lit, diagonal, 1), 0)", "1 / (diagonal + 1e-09)",
        "test_optics_single_disperser.py", "dense"),
    Fault("prox with twice the penalty", "optics/single_disperser.py::CASSI.solve", "gram + rho", "gram + 2 * rho",
        "test_optics_single_disperser.py", "dense"),
    Fault("norm squared", "optics/single_disperser.py::CASSI.norm", "self._gram[0].detach().max().sqrt()",
        "self._gram[0].detach().max()", "test_optics_single_disperser.py", "dense"),
    Fault("gram handed out itself", "optics/single_disperser.py::CASSI.gram_diag", "self._gram[0].clone()",
        "self._gram[0]", "test_optics_contract.py", "no_buffer"),
    Fault("mask shared with the caller", "optics/protocol.py::own",
        "tensor if tensor.requires_grad else tensor.clone(memory_format=torch.contiguous_format)", "tensor",
        "test_optics_single_disperser.py", "keeps_its_own"),
    Fault("autograd graph kept in the operator", "optics/protocol.py::kept.__get__", "camera.learned", "False",
        "test_optics_single_disperser.py", "two_backward or learned"),
    Fault("to() loses the weights", "optics/coded_aperture.py::CodedAperture.to",
        "replace(self, mask=self.mask.to(device=device, dtype=dtype))",
        "replace(self, mask=self.mask.to(device=device, dtype=dtype), weights=None)", "test_optics_single_disperser.py",
        "to_makes"),
    Fault("camera: weights not copied", "optics/protocol.py::checked_weights", "own(weights.to(like))",
        "weights.to(like)", "test_optics_contract.py", "weights_scale"),
    Fault("camera: negative weights taken", "optics/protocol.py::checked_weights",
        "weights.isfinite() & (weights >= 0)", "weights.isfinite()", "test_optics_contract.py", "wrong_arguments"),
    Fault("camera: its weights are replaced when pixels are left out", "optics/protocol.py::Camera.leave_out",
        "keep if self.weights is None else self.weights * keep", "keep", "test_choice_automatic.py", "several_shots"),
    Fault("camera: wrong sign of the adjoint of the second shot", "optics/multi_shot.py::MultiShot.adjoint",
        "x.add_(shot.adjoint(y_k))", "x.sub_(shot.adjoint(y_k))", "test_optics_contract.py", "both_directions"),
    Fault("camera: blur along the dispersion not transposed", "optics/blurred.py::BlurredCASSI._blurred_once",
        "self.psf.flip(0) if adjoint else self.psf", "self.psf", "test_optics_contract.py", "both_directions"),
    Fault("camera: small eigenvalues of several shots inverted", "optics/multi_shot.py::MultiShot.modes",
        "self.num_shots * torch.finfo(self.dtype).eps", "0", "test_optics_contract.py", "moore"),
    Fault("mask: those of several shots pass", "optics/mask_match.py::check_masks", "not check.matches", "False",
        "test_cli_scenes.py", "another_order"),
    Fault("motion: the flow has the wrong sign", "priors/motion.py::_update", "reference - moved", "moved - reference",
        "test_priors_motion.py", "translation"),
    Fault("camera: the bound lets signs cancel", "optics/protocol.py::Camera.majorizer", "self.absolute()", "self",
        "test_optics_contract.py", "bound"),
    Fault("camera: the data step of ADMM hands on the wrong measurement", "optics/protocol.py::Camera.data_step_",
        "b.sub_(r, alpha=rho) if rho > 0 else b", "b", "test_optics_contract.py", "step_of_admm"),
    Fault("camera: GAP divides by what a blur leaves", "optics/protocol.py::Camera.data_step_",
        "self.solve(b, rho) if rho > 0 or self.exact else b * self._inverse_majorizer", "self.solve(b, rho)",
        "test_optics_blurred.py", "noise_that"),
    Fault("camera: solvers start from amplified noise", "optics/protocol.py::Camera.first_guess", "self.exact", "True",
        "test_optics_blurred.py", "noise_that"),
    Fault("conjugate gradients take a batch for one system", "kernels/linear.py::conjugate_gradient_steps",
        "b.ndim if axes is None else axes", "b.ndim", "test_kernels_linear.py", "batch"),
    Fault("conjugate gradients forget where they started", "kernels/linear.py::conjugate_gradient_steps",
        "b.clone() if x0 is None else b - M(x)", "b.clone()", "test_kernels_linear.py", "dense or start"),
    Fault("conjugate gradients without the preconditioner after the first step",
        "kernels/linear.py::conjugate_gradient_steps",
        "z.copy_(r) if inverse is None else torch.mul(r, inverse, out=z)", "z.copy_(r)", "test_kernels_linear.py",
        "dense or start"),
    Fault("dual step too long", "priors/tv.py", "STEP = 1 / 8", "STEP = 1 / 3", "test_priors_tv.py",
        "outside or certif or gap"),
    Fault("denoiser starts cold", "priors/tv.py::TVDenoiser.__call__", "self._dual is None", "True",
        "test_priors_tv.py", "denoiser"),
    Fault("compiled dual step too long", "kernels/cpu_tv.py::_dual_row", "0.125", "0.3", "test_priors_tv.py",
        "compiled_path or two_pixels", True),
    Fault("GAP accelerated when asked not to be", "solvers/gap.py::gap", "accelerate", "True", "test_solvers_all.py",
        "iterates or objective"),
    Fault("GAP writes into its start", "solvers/gap.py::gap", "x0.clone(memory_format=torch.contiguous_format)", "x0",
        "test_solvers_all.py", "not_modified"),
    Fault("ADMM weighs the prior by rho", "solvers/admm.py::admm_tv", "tv_weight / penalty", "tv_weight * penalty",
        "test_solvers_all.py", "tv_prox or certified"),
    Fault("damping squared", "solvers/least_squares.py::least_squares", "A.solve(y, damping)",
        "A.solve(y, damping ** 2)", "test_solvers_least_squares.py", "ridge"),
    Fault("conjugate gradients on an inconsistent system", "solvers/least_squares.py::least_squares", "damping == 0",
        "False", "test_solvers_least_squares.py", "contradict"),
    Fault("conjugate gradients with the old direction", "kernels/linear.py::conjugate_gradient_steps",
        "_quotient(rz, rz_old)", "_quotient(rz_old, rz_old)", "test_kernels_linear.py"),
    Fault("stops on the residual", "solvers/loop.py::Loop._keep", "record.change < self._tol or stop",
        "record.residual < self._tol or stop", "test_solvers_loop.py"),
    Fault("NaN goes on", "solvers/loop.py::Loop._keep",
        "not (math.isfinite(record.residual) and math.isfinite(record.change))", "False", "test_solvers_loop.py"),
    Fault("the monitor cannot stop", "solvers/loop.py::Loop._keep", "stop", "False", "test_solvers_loop.py"),
    Fault("the strength of total variation does not follow its weight", "solvers/subspace_tv.py::subspace_tv",
        "lam ** 2", "lam", "test_solvers_subspace_tv.py", "lines or objective"),
    Fault("noise is not damped", "solvers/subspace_tv.py::subspace_tv", "a.clamp(max=1)", "0 * a.clamp(max=1)",
        "test_solvers_subspace_tv.py", "lines or objective"),
    Fault("negative radiance is only pushed back", "solvers/subspace_tv.py::subspace_tv", "u.copy_(p)", "pass",
        "test_solvers_subspace_tv.py", "lines or objective"),
    Fault("the compiled multiplier is not kept", "kernels/cpu.py::_multiplier_row", "u[j] = p", "u[j] = zero",
        "test_solvers_subspace_tv.py", "lines or objective", True),
    Fault("the next run starts from nothing", "solvers/subspace_tv.py::subspace_tv", "state.z.clone()", "0 * state.z",
        "test_solvers_subspace_tv.py"),
    Fault("the held-out pixels are seen", "choice/held_out.py::Split.of",
        "Split(A, y, held.expand(y.shape), A.leave_out(keep), y * keep)", "Split(A, y, held.expand(y.shape), A, y)",
        "test_choice_automatic.py"),
    Fault("beyond its picture a mask goes on as at the border", "calibration/camera_model.py::sampled", "share.any()",
        "False", "test_calibration_found_camera.py", "nobody_has_seen"),
    Fault("light that leaks is a black level", "optics/detector.py::black_level_of", "LEAKS", "0",
        "test_running_front_door.py", "leaks"),
    Fault("a camera that the snapshot does not show is taken", "calibration/found_camera.py::find_camera",
        "not any(compared(one).matches for one in (m, taken.in_place(replace(m, check=None))))", "False",
        "test_calibration_found_camera.py", "does_not_show"),
    Fault("mixing takes its steps the wrong way", "solvers/mixing.py::Mixing.__call__",
        "here.addcmul_(step, c, value=-1)", "here.addcmul_(step, c)", "test_solvers_mixing.py"),
    Fault("errors stay where the scene was laid", "choice/uncertainty.py::bootstrap",
        "elsewhere(found - scene, s, back=True)", "found - scene", "test_choice_uncertainty.py", "come_back_to"),
    Fault("uncertainty in units of its square", "choice/uncertainty.py::standard_deviation", "power / 2", "power",
        "test_choice_uncertainty.py", "by_hand or within"),
    Fault("compiled row kernels are not reversed", "kernels/cpu_rows.py::_correlate_rows", "m - one - k", "k",
        "test_kernels_convolution.py", "numpy", True),
    Fault("compiled groups are not shrunk", "kernels/cpu_lowrank.py::_filtered", "shrunk[a, j]", "plane[a, j]",
        "test_priors_nonlocal_lowrank.py", "agree", True),
    Fault("the difference is drawn around its minimum", "looking/color.py::shown_range", "-high", "lowest",
        "test_looking_figures.py", "around_zero"),
    Fault("the angle of a band, not of a spectrum", "looking/metrics.py::spectral_angles",
        "zip(one_a, one_b, strict=True)", "zip(one_a[:1], one_b[:1], strict=True)", "test_looking_metrics.py", "sam"),
    Fault("a file's name enters the index as it is", "looking/report_page.py::escape_text",
        "escape(str(value), quote=True)", "str(value)", "test_looking_overview.py", "index or inline"),
    Fault("figures loaded with the package", "__init__.py", "from cassi.version import __version__ as __version__",
        "import cassi.looking.figures\nfrom cassi.version import __version__ as __version__", "test_layers.py",
        "without_files or edges"),
    Fault("the operator knows what stands above it", "optics/single_disperser.py", "from torch import Tensor",
        "from torch import Tensor\nfrom cassi.running import result", "test_layers.py", "lies_below"),
    Fault("MATLAB's reversed axes left as they are", "files/formats/hdf5.py::open_hdf5.read",
        "values.T if reverse else values", "values.reshape(entry.shape)", "test_files_reading.py",
        "keys_of_the_field or matlab"),
    Fault("checksums of a PNG passed over", "files/formats/png.py::open_png", "image.verify()", "image.load()",
        "test_files_hostile.py", "checksum"),
    Fault("names with control characters are printed", "errors.py::one_line", "c if c.isprintable() else repr(c)[1:-1]",
        "c", "test_files_hostile.py", "terminal"),
    Fault("full scale without the black level taken off", "files/scaling.py::plan_counts",
        "Counts(black, full - black, full if saturation is None else saturation, unit, Note(note, \"counts\"))",
        "Counts(black, full, full if saturation is None else saturation, unit, Note(note, \"counts\"))",
        "test_files_reading.py", "levels"),
    Fault("the last frame is no frame", "files/scaling.py::pick_frames", "slice(frames % count, frames % count + 1)",
        "slice(frames, frames + 1)", "test_files_reading.py", "stack_of_frames"),
    Fault("sheared masks cut out at the first column", "files/layout.py::unshear_mask", "mask[c, :, s : s + width]",
        "mask[c, :, :width]", "test_files_reading.py", "sheared"),
    Fault("frames in the order of their letters", "files/frames.py::_files_of", "sorted(found, key=natural)",
        "sorted(found)", "test_files_frames.py", "patterns"),
    Fault("signals are not held back", "files/atomic.py::signals_held", "signal.signal(number, hold)", "pass",
        "test_files_writing.py", "signals_wait"),
    Fault("an existing file is replaced without asking", "files/atomic.py::check_place", "not overwrite",
        "overwrite is None", "test_files_writing.py", "existing"),
    Fault("a changed input counts as finished", "running/many.py::_fingerprint", "content", "frame.path",
        "test_running_many.py", "made_otherwise"),
    Fault("weights are written in place", "priors/learned.py::save_prior", "f'{path}.partial'", "path", "test_kill.py",
        "weights"),
    Fault("numbers on a device are never read before the end", "solvers/loop.py::Loop.compare",
        "len(self._pending) >= self._every", "False", "test_solvers_loop.py", "device"),
    Fault("a late divergence names the iteration at which it was read", "solvers/loop.py::Loop._keep",
        "len(self._history) + n", "len(self._history) + len(numbers)", "test_solvers_loop.py", "device"),
    Fault("change measured before denoising", "solvers/gap.py::gap",
        "overwrite(x, denoise(x, k))\nloop.compare(x, v, y_v, y)",
        "loop.compare(x, v, y_v, y)\noverwrite(x, denoise(x, k))", "test_solvers_all.py", "iterates"),
    Fault("a stage may do any harm", "choice/held_out.py::Judge.accepts", "not new.error <= MOST_RISE * old.error",
        "False", "test_choice_stages.py", "harms_little"),
    Fault("a stage may stamp the mask on its cube", "choice/held_out.py::Judge.accepts", "new.imprint is None", "True",
        "test_choice_stages.py", "harms_little"),
    Fault("chance counts as better", "choice/held_out.py::better", "float(d.mean()) < -chance", "float(d.mean()) < 0",
        "test_choice_stages.py", "by_more_than_chance"),
    Fault("the first chain is taken in any case", "choice/chain.py::final_run", "judge.accepts(found, verdict)", "True",
        "test_choice_stages.py", "first_chain_that_passes"),
    Fault("a chain in place of what was taken before it", "choice/chain.py::final_run", "(*begun, *chain)", "chain",
        "test_choice_stages.py", "first_chain_that_passes"),
    Fault("the stages see the held-out pixels", "choice/chain.py::final_run", "(split.A_train, split.y_train)",
        "(split.A, split.y)", "test_choice_stages.py", "no_stage_sees"),
    Fault("another prior goes on with all of the multiplier", "choice/stages.py::NonLocal.run",
        "torch.zeros_like(state.run.e)", "state.run.e", "test_choice_stages.py", "forgets_the_multiplier"),
    Fault("the network drops what its basis cannot hold", "choice/stages.py::Learned.run", "result.x + rest",
        "result.x", "test_choice_stages.py", "cannot_hold"),
    Fault("a tile is corrected in units of its own", "choice/stages.py::Learned.run", "problem.brightness is None",
        "True", "test_choice_stages.py", "units_of_its_frame"),
    Fault("each stage numbers its iterations from 1", "choice/stages.py::after", "last.iteration + record.iteration",
        "record.iteration", "test_choice_stages.py", "where_it_was_left or repeats"),
    Fault("a run has no deadline", "choice/stages.py::Watch.spend", "now + 1.5 * (now - self.last) > self.deadline",
        "False", "test_choice_stages.py", "deadline"),
    Fault("the prior of several shots is as weak as that of one", "choice/automatic.py::stages_of",
        "math.sqrt(A.num_shots)", "1.0", "test_choice_automatic.py", "stronger_prior"),
    Fault("the pilot of several shots has no spectra of one color", "choice/noise.py::pilot_basis", "A.num_shots == 1",
        "True", "test_choice_bases.py", "two_shots"),
    Fault("the spectra of a large frame are those of its window", "choice/automatic.py::_with_spectra_of_all",
        "plan.basis != SCENE", "True", "test_choice_automatic.py", "spectra_of_a_large_frame"),
    Fault("light of one color is looked for without the mask", "choice/bases.py::narrowness",
        "split.A_train.adjoint(residual)", "residual.expand(split.A_train.cube_shape[0], *residual.shape)",
        "test_choice_bases.py", "stands_out"),
    Fault("light of one color gets smooth spectra", "choice/automatic.py::explored",
        "narrowness(split, x) > STANDS_OUT", "False", "test_choice_bases.py", "default_beats"),
    Fault("of equal bases the last is taken", "choice/bases.py::best_basis", "better(verdict, best)", "True",
        "test_choice_bases.py", "of_equals_the_first"),
]  # fmt: skip


Syntax = ast.expr | list[ast.stmt]
Spot = tuple[Any, str, slice | int | None]  # node, field, and where in it


def parsed(text: str) -> Syntax:
    """An expression, or statements; the head of a block has an empty body."""
    if text.endswith(":"):
        (head,) = ast.parse(f"{text} pass").body
        return [_head(head)]
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return ast.parse(text).body


def _head(node: Any) -> Any:
    return type(node)(**{**dict(ast.iter_fields(node)), "body": [], "orelse": []})


def _same(a: ast.AST, b: ast.AST) -> bool:
    return type(a) is type(b) and ast.dump(a) == ast.dump(b)


def spots(scope: ast.AST, old: Syntax, head: bool) -> Iterator[Spot]:
    """Where these expressions or statements stand."""
    for node in ast.walk(scope):
        for field, value in ast.iter_fields(node):
            items = value if isinstance(value, list) else [value]
            if isinstance(old, ast.expr):
                for k, item in enumerate(items):
                    if isinstance(item, ast.expr) and _same(item, old):
                        yield node, field, k if isinstance(value, list) else None
            elif isinstance(value, list):
                for k in range(len(items) - len(old) + 1):
                    row = items[k : k + len(old)]
                    pairs = ((_head(a) if head and type(a) is type(b) else a, b) for a, b in zip(row, old, strict=True))
                    if all(_same(a, b) for a, b in pairs):
                        yield node, field, slice(k, k + len(old))


def scopes(tree: ast.Module) -> dict[str, ast.AST]:
    """Functions and classes by their full name; "" is the module."""
    found: dict[str, ast.AST] = {"": tree}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if named:
                found[f"{prefix}{child.name}"] = child
            visit(child, f"{prefix}{child.name}." if named else prefix)

    visit(tree, "")
    return found


def tree_of(file: str) -> ast.Module:
    path = ROOT / "cassi" / file
    return ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])


@functools.cache
def read_once(file: str) -> dict[str, ast.AST]:
    """The functions of a file, for what only looks."""
    return scopes(tree_of(file))


def spot_in(functions: dict[str, ast.AST], fault: Fault) -> Spot:
    """Where a fault goes.

    Raises:
        StaleError: no such place, or what is to be replaced is not there once.
    """
    function, (old, _) = fault.place.partition("::")[2], both(fault)
    scope = functions.get(function)
    found = [] if scope is None else list(spots(scope, old, fault.is_head))
    if len(found) != 1:
        raise StaleError(f"{fault.place} has `{fault.old}` {len(found)} times")
    return found[0]


def both(fault: Fault) -> tuple[Syntax, Syntax]:
    """Old and new, two expressions or two rows of statements."""
    old, new = parsed(fault.old), parsed(fault.new)
    if isinstance(old, ast.expr) and isinstance(new, ast.expr):
        return old, new
    rows = [[ast.Expr(one)] if isinstance(one, ast.expr) else one for one in (old, new)]
    return rows[0], rows[1]


def faulty(fault: Fault) -> str:
    """The text of the file with the fault in it.

    Raises:
        StaleError: see `spot_in`.
    """
    tree = tree_of(fault.file)
    node, field, where = spot_in(scopes(tree), fault)
    _, new = both(fault)
    if where is None:
        setattr(node, field, new)
    else:
        kept = getattr(node, field)[where]
        if fault.is_head and isinstance(new, list):
            new[0].body, new[0].orelse = kept[0].body, kept[0].orelse  # type: ignore[attr-defined]
        getattr(node, field)[where] = new
    return ast.unparse(ast.fix_missing_locations(tree))


def stale(fault: Fault) -> str:
    """Why a fault cannot be put in, or no test could notice it; "" where all is well."""
    try:
        spot_in(read_once(fault.file), fault)
    except StaleError as error:
        return f"{fault.name}: {error}"
    path = ROOT / "tests" / fault.tests
    tests = path.read_text(encoding="utf-8") if path.exists() else ""
    words = [word for word in re.findall(r"[a-z_]{4,}", fault.select) if word not in tests]
    return f"{fault.name}: {fault.tests} has no {', '.join(words) or 'tests'}" if words or not tests else ""


def copy_package(folder: Path) -> None:
    for part in ("cassi", "tests", "scripts"):
        shutil.copytree(ROOT / part, folder / part)  # with compiled code: it is that of files as old as these
    shutil.copy(ROOT / "pyproject.toml", folder)


def pytest_in(folder: Path, arguments: list[str], compiled: bool) -> None:
    """pytest in a copy, its words in a file there; in a process that was forked with the slow imports done."""
    os.chdir(folder)
    os.environ |= {
        "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "CASSI_COMPILED": str(int(compiled)),
        "PYTHONPATH": str(folder),
    }  # fmt: skip
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    words = os.open(folder / "words.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(words, stream)
    import pytest

    sys.exit(int(pytest.main(arguments)))


def run(folder: Path, tests: str, select: str, compiled: bool) -> tuple[int, str]:
    """pytest in a copy, stopping at the first red test; its exit code and that test."""
    arguments = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", f"tests/{tests}", *(["-k", select] if select else [])]
    process = FORKS.Process(target=pytest_in, args=(folder, arguments, compiled))
    process.start()
    process.join()
    told = (folder / "words.txt").read_text(encoding="utf-8", errors="replace")
    red = re.search(r"^(?:FAILED|ERROR) tests/[^:]+::(.+?)(?: - .*)?$", told, re.MULTILINE)
    return process.exitcode or 0, red[1] if red else ""


def check(fault: Fault) -> tuple[str, str]:
    """What became of a fault, "caught" or why not, and the test that caught it."""
    try:
        text = faulty(fault)
    except StaleError as error:
        return f"stale: {error}", ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_package(folder)
        (folder / "cassi" / fault.file).write_text(text, encoding="utf-8")
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
            picked = [f for f in faults if (f.tests, f.compiled) == (tests, compiled)]
            select = " or ".join(f"({f.select or 'test'})" for f in picked)
            code, test = run(Path(name), tests, select, compiled)
            if code != 0:
                red.append(f"{tests}::{test}")
    return red


def main(words: list[str]) -> int:
    if words == ["--stale"]:
        found = [line for line in map(stale, FAULTS) if line]
        print(*found or ["none is stale"], sep="\n")
        return int(bool(found))
    faults = [f for f in FAULTS if not words or any(word in f.name for word in words)]
    red = check_green(faults)
    if red:
        print("red without any fault:", *red)
        return 1
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        outcomes = list(pool.map(check, faults))
    print("| fault | file | outcome | caught by |\n|---|---|---|---|")
    for fault, (outcome, test) in zip(faults, outcomes, strict=True):
        print(f"| {fault.name} | {fault.place} | {outcome} | {test} |")
    caught = sum(outcome == "caught" for outcome, _ in outcomes)
    print(f"\n{caught} of {len(faults)} caught")
    return 0 if caught == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

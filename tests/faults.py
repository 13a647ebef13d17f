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
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FORKS = get_context("forkserver")  # each pytest is a fork of a process that has imported what takes seconds
FORKS.set_forkserver_preload(["torch", "scipy.ndimage", "h5py", "pytest"])


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
PROTOCOL, BLUR, LINEAR = "cassi/optics/protocol.py", "cassi/optics/blurred.py", "cassi/kernels/linear.py"
SIDE = "cassi/optics/side_view.py"
SHOTS, CONTRACT = "cassi/optics/multi_shot.py", "test_optics_contract.py"
SQUARES, RESULT, COMPILED = "cassi/solvers/least_squares.py", "cassi/solvers/loop.py", "cassi/kernels/cpu.py"
THREADS, TRITON, DISPATCH = "cassi/kernels/threads.py", "cassi/kernels/gpu.py", "cassi/kernels/dispatch.py"

FAULTS = [
    # what is refused
    Fault(
        "negative light is taken", "cassi/running/preparing.py", "    check_light(y)\n", "",
        "test_running_front_door.py", "light_is_not",
    ),
    Fault(
        "a plan for other bands is followed", "cassi/choice/plan.py", "self.vectors.shape[-1] != num_bands", "False",
        "test_running_front_door.py", "nothing_to_choose",
    ),
    Fault(
        "the camera is looked for in negative light", "cassi/calibration/found_camera.py",
        "    check_light(torch.stack(frames))", "    pass", "test_calibration_found_camera.py", "negative_light",
    ),
    Fault(
        "an inverted mask fits", "cassi/optics/mask_match.py", "if matches and given.inverted(", "if False and (",
        "test_optics_mask_match.py", "swapped",
    ),
    Fault(
        "Python tells nothing of a mask that does not belong", "cassi/running/front_door.py",
        "told_before = as_stated.check is not None", "told_before = True", "test_running_result.py", "does_not_belong",
    ),
    Fault(
        "a sequence tells nothing of its mask", "cassi/cli/sequence.py", "    warn_of(args, report)\n", "",
        "test_cli_scenes.py", "where_the_mask",
    ),
    Fault(
        "a capture counts as often as it is given", "cassi/cli/refine.py", "return list(first.values())",
        "return list(files)", "test_calibration_refined_camera.py", "counted_once",
    ),
    Fault(
        "of single cubes any frame is the one", "cassi/looking/comparison.py", "if frame and max(", "if False and max(",
        "test_looking_comparison.py", "single_cubes",
    ),
    Fault(
        "a black level is never too high", "cassi/running/evidence.py", "if not below > BELOW * above:", "if True:",
        "test_cli_reconstruct.py", "too_high",
    ),
    Fault(
        "exposures of shots are not compared", "cassi/running/evidence.py", "<= UNEVEN * light", "<= 1e9 * light",
        "test_cli_scenes.py", "different_exposure",
    ),
    Fault(
        "one bright end makes a snapshot an inverted one", "cassi/running/evidence.py",
        "min(parts[0].mean(), parts[1].mean()) <=", "max(parts[0].mean(), parts[1].mean()) <=",
        "test_cli_reconstruct.py", "inverted",
    ),
    Fault(
        "ENVI's old header stays beside new data", "cassi/files/atomic.py", "path.unlink(missing_ok=True)", "pass",
        "test_kill.py", "header",
    ),
    # files in each other's place
    Fault(
        "the camera may replace an input", "cassi/cli/places.py", "if place in read:", "if False:",
        "test_cli_places.py", "no_file",
    ),
    # hot pixels
    Fault(
        "stars are hot pixels where light is not spread", "cassi/optics/outliers.py",
        "len({round(d) for d in m.shifts})", "len(m.shifts)", "test_optics_outliers.py", "not_spread",
    ),
    Fault(
        "always the search for many", "cassi/optics/outliers.py", "((2, 2), (3, 4), (3, 4))", "((3, 4), (3, 4))",
        "test_optics_outliers.py", "few_hot",
    ),
    Fault(
        "hot pixels hide each other", "cassi/optics/outliers.py", "((2, 2), (3, 4), (3, 4))", "((2, 2),)",
        "test_optics_outliers.py", "many_of_them",
    ),
    Fault(
        "a tile is corrected in units of its own", "cassi/choice/refine.py", ", level=problem.brightness, ", ", ",
        "test_choice_learned.py", "units_of_its_frame",
    ),
    Fault(
        "corrected again and again in any case", "cassi/choice/refine.py",
        "held_out_error <= limit", "held_out_error <= math.inf",
        "test_choice_learned.py", "often_where",
    ),
    Fault(
        "corrected whatever it stamps on the cube", "cassi/choice/refine.py",
        "stamp <= faint or", "0 <= faint or",
        "test_choice_learned.py", "hardly_more",
    ),
    Fault(
        "the misfit is forgotten between corrections", "cassi/choice/refine.py",
        "KEPT = 0.25, 0.8", "KEPT = 0.25, 0.0",
        "test_choice_learned.py", "between_two",
    ),
    Fault(
        "a second correction of the first cube", "cassi/choice/refine.py",
        "z=analyse(once.x, B)", "z=analyse(result.x, B)",
        "test_choice_learned.py", "between_two",
    ),
    Fault(
        "a plan corrects once", "cassi/choice/refine.py", "watch, plan.corrections)", "watch, 1)",
        "test_choice_learned.py", "repeats_as_many",
    ),
    Fault(
        "blocks begin anywhere", "cassi/running/tiling.py", "GRID = 20", "GRID = 1",
        "test_running_tiling.py", "grids_of",
    ),
    # motion
    Fault(
        "what comes into sight counts as motion", "cassi/solvers/measured_motion.py",
        "(variance + blurred(r.square()[None], NEAR)[0])", "(variance)",
        "test_solvers_measured_motion.py", "something_else",
    ),
    Fault(
        "the motion may be rough", "cassi/solvers/measured_motion.py",
        "SMOOTH * _roughness(d) + SMALL * d", "SMALL * d", "test_solvers_measured_motion.py", "dense",
    ),
    Fault(
        "motion is that of reconstructions alone", "cassi/solvers/measured_motion.py",
        "v = v + step / step.norm(dim=0).clamp(min=1)", "pass", "test_solvers_measured_motion.py", "is_found",
    ),
    # a photograph beside the snapshot
    Fault(
        "what is left of a picture counts the same everywhere", "cassi/running/beside.py",
        "if placed.rest <= AGREES or placed.rest > AGREES_AT_ALL:", "if True:",
        "test_running_beside.py", "tells_little",
    ),
    Fault(
        "what is left of a picture is judged by no other tone", "cassi/running/beside.py",
        "return rest >= NO_BETTER * placed.rest", "return True", "test_running_beside.py", "tells_little",
    ),
    Fault(
        "the photograph's bound is not doubled", SIDE,
        "return 2 * self.stack(self.camera.majorizer()", "return self.stack(self.camera.majorizer()",
        "test_optics_side_view.py", "stacked",
    ),
    Fault(
        "the photograph's weights are left out on the way back", SIDE,
        "self._side(y) * self._w)", "self._side(y))",
        "test_optics_side_view.py", "stacked",
    ),
    Fault(
        "the pass in one forgets the photograph's row weights", SIDE,
        "r.add_(s(e)).mul_(s(omega)).mul_(self._w)", "r.add_(s(e)).mul_(s(omega))",
        "test_optics_side_view.py", "pass", compiled=True,
    ),
    Fault(
        "a picture is turned the other way", "cassi/optics/similarity.py",
        "scale * (c * i + s * j), scale * (c * j - s * i)", "scale * (c * i - s * j), scale * (c * j + s * i)",
        "test_optics_side_view.py", "quarter",
    ),
    Fault(
        "the gain of a photograph is that of its inverse", "cassi/calibration/side_response.py",
        "gain = (s * w).sum((1, 2)) / seen", "gain = seen.sum((1, 2)) / (s * w)",
        "test_calibration_side.py", "gain",
    ),
    Fault(
        "any picture fits", "cassi/calibration/side_registration.py",
        "FITS = 0.5", "FITS = -1.0",
        "test_running_beside.py", "foreign",
    ),
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
        "step if step is not None and step >= 0 else None",
        "step",
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
        "(*y.stride()[:-2], skew * y.stride(-1), y.stride(-2), y.stride(-1))",
        "(*y.stride()[:-2], skew, y.shape[-1], 1)",
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
        "            if add:\n",
        "            if False:\n",
        "test_kernels_shift_sum.py", "overwritten", compiled=True,
    ),
    Fault(
        "compiled forward model drops the last row of a block", COMPILED,
        "        for i in range(top, bottom):\n            _add_product(y[i",
        "        for i in range(top, bottom - 1):\n            _add_product(y[i",
        "test_kernels_shift_sum.py", "voxel", compiled=True,
    ),
    Fault(
        "compiled data step adds to what was in the other cube", COMPILED,
        "_stack(x, 3), x is v)",
        "_stack(x, 3), True)",
        "test_optics_single_disperser.py", "data_step", compiled=True,
    ),
    Fault(
        "kernels take what is not contiguous", DISPATCH,
        "        and t.is_contiguous()\n",
        "",
        "test_kernels_cpu.py", "what_the_kernels_take", compiled=True,
    ),
    Fault(
        "what a kernel raises in a thread is lost", THREADS,
        "            helper.result()\n",
        "            continue\n",
        "test_kernels_cpu.py", "raises_in_another", compiled=True,
    ),
    Fault(
        "kernels need a place for compiled code", "cassi/kernels/jit.py",
        "    except RuntimeError:",
        "    except ZeroDivisionError:",
        "test_kernels_cpu.py", "place_for", compiled=True,
    ),
    Fault(
        "a batch of coefficients is left to eager torch", SUBSPACE,
        "B).contiguous()\n",
        "B)\n",
        "test_kernels_gpu.py", "default_solver", compiled=True,
    ),
    Fault(
        "Triton's multiplier may be negative", TRITON,
        "p = tl.where(p < 0, 0.0, p)",
        "p = tl.where(p < 0, p, p)",
        "test_kernels_gpu.py", "subspace_step and 8-True", compiled=True,
    ),
    Fault(
        "Triton's subspace step forgets the misfit", TRITON,
        "other=0.0) * (kept + r)\n",
        "other=0.0) * kept\n",
        "test_kernels_gpu.py", "subspace_step and 3-False", compiled=True,
    ),
    Fault(
        "Triton sums the reference, not its square", TRITON,
        "reference += value.to(tl.float64) * value.to(tl.float64)",
        "reference += value.to(tl.float64)",
        "test_kernels_gpu.py", "squared_distance", compiled=True,
    ),
    Fault(
        "Triton's data step forgets rho", TRITON,
        "total = gram if rho == 0 else gram + rho",
        "total = gram",
        "test_kernels_gpu.py", "data_step", compiled=True,
    ),
    Fault(
        "light crosses the right border in Triton's dual step", TRITON,
        "to_right, to_below = inside & (w < W - 1)",
        "to_right, to_below = inside & (w < W)",
        "test_kernels_gpu.py", "total_variation", compiled=True,
    ),
    Fault(
        "compiled kernels drop the last range of rows", THREADS,
        "count * k // pieces for k in range(pieces + 1)",
        "count * k // (pieces + 1) for k in range(pieces + 1)",
        "test_kernels_cpu.py", "ranges or more_threads", compiled=True,
    ),
    # the operator
    Fault(
        "gram from the mask, not its square", OPERATOR,
        "light = shift_sum(each, self.mask**2, self.shifts)",
        "light = shift_sum(each, self.mask.abs(), self.shifts)",
        "test_optics_single_disperser.py", "dense or hand",
    ),
    Fault(
        "gram with the weights, not their squares", OPERATOR,
        "light * self.weights**2",
        "light * self.weights",
        "test_optics_single_disperser.py", "dense or hand",
    ),
    Fault(
        "pseudo-inverse regularized at dark columns", PROTOCOL,
        "return torch.where(lit, 1 / torch.where(lit, diagonal, 1), 0)",
        "return 1 / (diagonal + 1e-9)",
        "test_optics_single_disperser.py", "dense",
    ),
    Fault(
        "prox with twice the penalty", OPERATOR,
        "/ (self._gram_or_computed() + rho)",
        "/ (self._gram_or_computed() + 2 * rho)",
        "test_optics_single_disperser.py", "dense",
    ),
    Fault(
        "norm squared", OPERATOR,
        ".max().sqrt())",
        ".max())",
        "test_optics_single_disperser.py", "dense",
    ),
    Fault(
        "gram handed out itself", OPERATOR,
        "else self._gram.clone()",
        "else self._gram",
        "test_optics_single_disperser.py", "hidden",
    ),
    Fault(
        "mask shared with the caller", PROTOCOL,
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
        "to() loses the weights", "cassi/optics/coded_aperture.py",
        "return replace(self, mask=self.mask.to(device=device, dtype=dtype))",
        "return replace(self, mask=self.mask.to(device=device, dtype=dtype), weights=None)",
        "test_optics_single_disperser.py", "to_makes",
    ),
    # the contract of cameras
    Fault(
        "camera: weights not copied", PROTOCOL,
        "return own(weights.to(like))",
        "return weights.to(like)",
        CONTRACT, "weights_scale",
    ),
    Fault(
        "camera: negative weights taken", PROTOCOL,
        "(weights.isfinite() & (weights >= 0)).all()",
        "weights.isfinite().all()",
        CONTRACT, "weights_are_checked",
    ),
    Fault(
        "camera: its weights are replaced when pixels are left out", PROTOCOL,
        "self.weighted(keep if self.weights is None else self.weights * keep)",
        "self.weighted(keep)",
        "test_choice_automatic.py", "several_shots",
    ),
    Fault(
        "camera: wrong sign of the adjoint of the second shot", SHOTS,
        "shot.adjoint(y[..., k, :, :], out=x, add=True)",
        "shot.adjoint(-y[..., k, :, :], out=x, add=True)",
        CONTRACT, "dot_product",
    ),
    Fault(
        "camera: blur along the dispersion not transposed", BLUR,
        "self.psf.flip(0) if adjoint else self.psf",
        "self.psf",
        CONTRACT, "dot_product",
    ),
    Fault(
        "camera: blur across the dispersion not transposed", BLUR,
        "by = -by if adjoint else by",
        "by = abs(by) * (1 if by > 0 else -1)",
        CONTRACT, "dot_product",
    ),
    Fault(
        "camera: small eigenvalues of several shots inverted", SHOTS,
        "cut = self.num_shots * torch.finfo(self.dtype).eps * values.amax(0)",
        "cut = 0 * values.amax(0)",
        CONTRACT, "moore",
    ),
    Fault(
        "camera: the masks of a double disperser are cut at the wrong columns", "cassi/files/other_optics.py",
        "int(d) - int(min(found))",
        "int(max(found)) - int(d)",
        "test_files_other_optics.py", "double",
    ),
    Fault(
        "mask: the order of shots is not looked at", "cassi/optics/mask_match.py",
        "if number != k and check_mask(",
        "if number == k and check_mask(",
        "test_cli_scenes.py", "another_order",
    ),
    Fault(
        "motion: the flow has the wrong sign", "cassi/priors/motion.py",
        "misfit = reference - moved",
        "misfit = moved - reference",
        "test_priors_motion.py", "translation",
    ),
    Fault(
        "camera: the bound lets signs cancel", PROTOCOL,
        "return self.absolute().gram(",
        "return self.gram(",
        CONTRACT, "bound",
    ),
    Fault(
        "camera: the data step of ADMM hands on the wrong measurement", PROTOCOL,
        "b.sub_(r, alpha=rho) if rho > 0 else b",
        "b",
        CONTRACT, "step_of_admm",
    ),
    Fault(
        "camera: GAP divides by what a blur leaves", PROTOCOL,
        "r = self.solve(b, rho) if rho > 0 or self.exact else b * self._inverse_majorizer",
        "r = self.solve(b, rho)",
        "test_optics_blurred.py", "noise_that",
    ),
    Fault(
        "camera: solvers start from amplified noise", PROTOCOL,
        "return self.pinv(y) if self.exact else",
        "return self.pinv(y) if True else",
        "test_optics_blurred.py", "noise_that",
    ),
    Fault(
        "camera: what a wanted gradient refuses is done", PROTOCOL,
        "if torch.is_grad_enabled() and any(t.requires_grad for t in inputs if t is not None):",
        "if False:",
        CONTRACT, "gradient_refuses",
    ),
    Fault(
        "camera: swapped arguments not told", PROTOCOL,
        "swapped = tuple(tensor.shape[-len(other) :]) == other",
        "swapped = False",
        CONTRACT, "wrong_arguments",
    ),
    Fault(
        "conjugate gradients take a batch for one system", LINEAR,
        "range(-(b.ndim if axes is None else axes), 0)",
        "range(-b.ndim, 0)",
        "test_kernels_linear.py", "batch",
    ),
    Fault(
        "conjugate gradients forget where they started", LINEAR,
        "r = b.clone() if x0 is None else b - M(x)",
        "r = b.clone()",
        "test_kernels_linear.py", "dense or start",
    ),
    Fault(
        "conjugate gradients without the preconditioner after the first step", LINEAR,
        "z.copy_(r) if inverse is None else torch.mul(r, inverse, out=z)",
        "z.copy_(r)",
        "test_kernels_linear.py", "dense or start",
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
        "denoiser starts cold", TV,
        "        if self._dual is None:",
        "        if True:",
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
        "accelerate=accelerate)  # the first",
        "accelerate=True)  # the first",
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
        "A.adjoint(A.solve(y, damping))",
        "A.adjoint(A.solve(y, damping**2))",
        "test_solvers_all.py", "ridge",
    ),
    Fault(
        "conjugate gradients on an inconsistent system", SQUARES,
        "if damping == 0 and not A.exact:",
        "if False:",
        "test_solvers_all.py", "contradict",
    ),
    Fault(
        "conjugate gradients with the old direction", LINEAR,
        "p.mul_(_quotient(rz, rz_old)).add_(z)",
        "p.mul_(_quotient(rz_old, rz_old)).add_(z)",
        "test_kernels_linear.py",
    ),
    Fault(
        "stops on the residual", RESULT,
        "if record.change < self._tol:",
        "if record.residual < self._tol:",
        "test_solvers_loop.py",
    ),
    Fault(
        "NaN goes on", RESULT,
        "if not (math.isfinite(record.residual) and math.isfinite(record.change)):",
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
        "the strength of total variation does not follow its weight", SUBSPACE,
        "(PRIOR_STRENGTH / lam**2)", "(PRIOR_STRENGTH / lam)",
        "test_solvers_subspace_tv.py", "lines or objective",
    ),
    Fault(
        "noise is not damped", SUBSPACE,
        "for t in (1 - a.clamp(max=1), inverse",
        "for t in (1 - 0 * a.clamp(max=1), inverse",
        "test_solvers_subspace_tv.py", "lines or objective",
    ),
    Fault(
        "negative radiance is only pushed back", SUBSPACE,
        "                u.copy_(p)\n",
        "",
        "test_solvers_subspace_tv.py", "lines or negative_radiance",
    ),
    Fault(
        "the compiled multiplier is not kept", COMPILED,
        "        u[j] = p\n",
        "        u[j] = zero\n",
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
        "return Split(A, y, held.expand(y.shape), A.leave_out(keep), y * keep)",
        "return Split(A, y, held.expand(y.shape), A, y)",
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
        "a blurred mask is told as a wrong number of bands", "cassi/optics/mask_match.py",
        "return expected - below <= share <= expected + above", "return True", "test_optics_mask_match.py",
        "blurred_mask",
    ),
    Fault(
        "a mask sharper than its picture is told as a wrong number of bands", "cassi/optics/mask_match.py",
        "    if explained(c, true, _smooth_weights(len(true))) <= explained(c, own, _smooth_weights(len(own))):",
        "    if False:", "test_optics_mask_match.py", "sharper_than_its_picture",
    ),
    Fault(
        "bands without light are blurred away", "cassi/calibration/self_calibration.py", "ends).max() <= WIDEST)",
        "ends).max() <= 1000)", "test_calibration_found_camera.py", "light_in_one_band",
    ),
    Fault(
        "blur by band without a level of its own", "cassi/calibration/self_calibration.py",
        "[: 1 + bool(level)]", "[:1]", "test_calibration_found_camera.py", "grows_with_the_band",
    ),
    Fault(
        "a camera that explains next to nothing is believed", "cassi/calibration/found_camera.py",
        "BLIND, UNBLINDED = 0.3", "BLIND, UNBLINDED = 3", "test_calibration_found_camera.py", "hardly_anything",
    ),
    Fault(
        "any mask that explains nothing wants another contrast", "cassi/calibration/self_calibration.py",
        "FLATTEST = 0.3", "FLATTEST = 0.0", "test_calibration_found_camera.py", "fits_nothing",
    ),
    Fault(
        "a refined camera is judged without the black level that was looked for with it",
        "cassi/calibration/found_camera.py", "for y in _frames(m, camera, bad, black_level)",
        "for y in _frames(m, given, bad, black_level)", "test_calibration_found_camera.py", "not_there_passes",
    ),
    Fault(
        "beyond its picture a mask goes on as at the border", "cassi/calibration/camera_model.py",
        "    if share.any():\n", "    if False:\n", "test_calibration_found_camera.py", "nobody_has_seen",
    ),
    Fault(
        "pixels behind a mask nobody has seen count", "cassi/calibration/camera_model.py",
        "    return found if found.any() else None", "    return None", "test_calibration_found_camera.py",
        "nobody_has_seen",
    ),
    Fault(
        "a black level told through a mask out of place passes for contrast", "cassi/calibration/found_camera.py",
        "_frames(one, through(mask), bad, black_level)]", "_frames(one, A, bad, black_level)]",
        "test_calibration_found_camera.py", "black_level_that_is_not_there",
    ),
    Fault(
        "blurs are interpolated in the variance", "cassi/calibration/camera_model.py",
        "s, nodes = math.e ** (-FADE * variance), [math.exp(-FADE * b) for b in BLURS]", "s, nodes = variance, BLURS",
        "test_calibration_found_camera.py", "interpolated",
    ),
    Fault(
        "the last fit looks no closer", "cassi/calibration/self_calibration.py",
        "    values = descend(blocks, used, {})\n", "    values = 0 * descend(blocks, used, {})\n",
        "test_calibration_found_camera.py", "rise_steeply",
    ),
    Fault(
        "a mask out of place is told although it was found", "cassi/running/evidence.py",
        "return again if again.matches else check", "return check", "test_running_result.py", "out_of_place",
    ),
    Fault(
        "light that leaks is a black level", "cassi/optics/detector.py", "< LEAKS * _intercept", "< 0 * _intercept",
        "test_running_front_door.py", "leaks",
    ),
    Fault(
        "a mask sharper than its picture is believed", "cassi/calibration/found_camera.py",
        'if model.blur.get("1", 0.0) < 0:', "if False:", "test_calibration_found_camera.py", "without_need",
    ),
    Fault(
        "no mask is sharper than its picture", "cassi/calibration/found_camera.py",
        "if _error(tried) <= (1 + rise) * _error(found) and", "if True or", "test_calibration_found_camera.py",
        "sharper_than_its_picture_is",
    ),
    Fault(
        "a camera that the snapshot does not show is taken", "cassi/calibration/found_camera.py",
        "    if not any(_shows(one)", "    if False and not any(_shows(one)", "test_calibration_found_camera.py",
        "does_not_show",
    ),
    Fault(
        "few bands are corrected several times", FINAL,
        "FEWEST_BANDS = 18", "FEWEST_BANDS = 1", "test_choice_learned.py", "few_bands",
    ),
    Fault(
        "a scene passes for a mask that is deeper than its picture", "cassi/calibration/found_camera.py",
        "EQUAL if model.contrast < 1 else SHARPER", "EQUAL", "test_calibration_found_camera.py", "contrast_is_let_go",
    ),
    Fault(
        "six smooth spectra to a block", "cassi/calibration/self_calibration.py",
        "COARSE = Look(3.0, 14, 10)", "COARSE = Look(3.0, 14, 6)", "test_calibration_found_camera.py", "rise_steeply",
    ),
    Fault(
        "quality fast leaves the learned prior out", FINAL,
        "split_off = bool(effort.sigmas) or step is not None", "split_off = bool(effort.sigmas)",
        "test_choice_learned.py", "fast_ends",
    ),
    Fault(
        "frames with neighbors always end with the non-local prior", "cassi/choice/neighbors.py",
        "> WORSE * after",
        "> math.inf",
        "test_choice_neighbors.py", "neighbors_help",
    ),
    Fault(
        "a run that fits noise is gone on with", FINAL,
        "self.over = behind or found > (1 + self.effort.worse) * self.lowest",
        "self.over = behind",
        "test_choice_automatic.py", "fits_noise_is_over",
    ),
    Fault(
        "a hopeless prior is gone on with", FINAL,
        "behind = halfway and found > self.effort.give_up * self.reference",
        "behind = False",
        "test_choice_automatic.py", "given_up",
    ),
    Fault(
        "the non-local prior always wins", FINAL,
        "    if chosen.kept_error <= limit:\n",
        "    if True:\n",
        "test_choice_automatic.py", "goes_on",
    ),
    Fault(
        "the non-local prior never wins", FINAL,
        "    if chosen.kept_error <= limit:\n",
        "    if False:\n",
        "test_choice_automatic.py", "ends_with or best",
    ),
    Fault(
        "the spectra of a large frame are those of its window", "cassi/choice/automatic.py",
        "    if plan.basis == SCENE and",
        "    if False and",
        "test_choice_automatic.py", "spectra_of_a_large_frame",
    ),
    Fault(
        "little noise is taken for much", CANDIDATES,
        "held_out_error > noisy",
        "held_out_error < noisy",
        "test_choice_candidates.py", "more_of_the_noise",
    ),
    Fault(
        "the scene's own spectra must predict better", "cassi/choice/candidates.py",
        "basis=SCENE), -SCENE_LOSS)",
        "basis=SCENE), SCENE_LOSS)",
        "test_choice_candidates.py", "level_of_bright_objects",
    ),
    Fault(
        "several shots are judged like one", "cassi/choice/automatic.py",
        "    return len(A.measurement_shape) > 2\n",
        "    return False\n",
        "test_choice_automatic.py", "several_shots_always",
    ),
    Fault(
        "none of a learned correction", "cassi/choice/learned_step.py",
        "SHARE = 0.7\n",
        "SHARE = 0.0\n",
        "test_choice_learned.py", "predicts_better",
    ),
    Fault(
        "light of one color is looked for without the mask", "cassi/choice/narrow.py",
        "_blurred(split.A_train.adjoint(residual))",
        "_blurred(residual.expand(split.A_train.cube_shape[0], *residual.shape))",
        "test_choice_narrow.py", "stands_out",
    ),
    Fault(
        "light of one color gets smooth spectra", "cassi/choice/automatic.py",
        "model, pilot, first = narrow_model, narrow_pilot, NARROW",
        "model, pilot, first = narrow_model, narrow_pilot, None; del bases[NARROW]",
        "test_choice_narrow.py", "default_beats",
    ),
    Fault(
        "errors stay where the scene was laid", "cassi/choice/uncertainty.py",
        "errors.append(back(found - scene))",
        "errors.append(found - scene)",
        "test_choice_uncertainty.py", "come_back_to",
    ),
    Fault(
        "uncertainty in units of its square", "cassi/choice/uncertainty.py",
        "power / 2 * (v / level**2",
        "power * (v / level**2",
        "test_choice_uncertainty.py", "by_hand or within",
    ),
    Fault(
        "compiled row kernels are not reversed", "cassi/kernels/cpu_rows.py",
        "                p = last - i\n",
        "                p = i + three\n",
        "test_kernels_convolution.py", "numpy", compiled=True,
    ),
    Fault(
        "compiled groups are not shrunk", "cassi/kernels/cpu_lowrank.py",
        "components[a * pixels + j, k] = shrunk[a, j]",
        "components[a * pixels + j, k] = plane[a, j]",
        "test_priors_nonlocal_lowrank.py", "agree", compiled=True,
    ),
    Fault(
        "a hot pixel is taken for the slit", "cassi/calibration/line_spread.py",
        "along = ndimage.median_filter(light, size=(5, 1), mode=\"nearest\")",
        "along = light",
        "test_calibration_line_spread.py", "hot",
    ),
    # looking
    Fault(
        "a red box for good results only", "cassi/looking/report_data.py",
        "found = [] if self.ok else",
        "found = [] if not self.ok else",
        "test_looking_overview.py", "inline or index",
    ),
    Fault(
        "the difference is drawn around its minimum", "cassi/looking/color.py",
        "return Limits(-high, high, lowest, highest)",
        "return Limits(lowest, high, lowest, highest)",
        "test_looking_figures.py", "around_zero",
    ),
    Fault(
        "dim spectra drawn larger, but not their numbers told", "cassi/looking/drawing.py",
        "        factor = _magnification(tops[k], highest)\n",
        "        factor = 2 * _magnification(tops[k], highest)\n",
        "test_looking_figures.py", "dim or numbers",
    ),
    Fault(
        "spread is called a standard deviation", "cassi/looking/drawing.py",
        "if calibrated else",
        "if not calibrated else",
        "test_looking_figures.py", "show_the_numbers",
    ),
    Fault(
        "the angle of a band, not of a spectrum", "cassi/looking/metrics.py",
        "    for one_a, one_b in zip(a.reshape(-1, *a.shape[-3:]), b.reshape(-1, *b.shape[-3:]), strict=True):\n"
        "        norm_a, norm_b = (_norm(cube) for cube in (one_a, one_b))\n",
        "    for one_a, one_b in zip(a.reshape(-1, *a.shape[-3:]), b.reshape(-1, *b.shape[-3:]), strict=True):\n"
        "        norm_a, norm_b = (_norm(cube[:1]) for cube in (one_a, one_b))\n",
        "test_looking_metrics.py", "sam",
    ),
    Fault(
        "a file's name enters the index as it is", "cassi/looking/report_page.py",
        "return escape(str(value), quote=True)",
        "return str(value)",
        "test_looking_overview.py", "index or inline",
    ),
    Fault(
        "the second frame of a stack with the history of the first", "cassi/looking/report_data.py",
        "return history[starts[frame] : [*starts, len(history)][frame + 1]]",
        "return history[starts[0] : [*starts, len(history)][1]]",
        "test_looking_overview.py", "memory",
    ),
    Fault(
        "compared with itself", "cassi/looking/comparison.py",
        "    if x.shape != truth.shape:\n",
        "    truth = x\n    if x.shape != truth.shape:\n",
        "test_looking_comparison.py", "hand",
    ),
    # the house
    Fault(
        "figures loaded with the package", "cassi/__init__.py",
        "from cassi.version import __version__ as __version__\n",
        "import cassi.looking.figures\nfrom cassi.version import __version__ as __version__\n",
        "test_layers.py", "without_files or edges",
    ),
    Fault(
        "a function takes sixteen parameters", "cassi/files/reading.py",
        "    *,\n    mask: PathLike | np.ndarray | None = None,\n    key:",
        "    *,\n    a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0,\n"
        "    mask: PathLike | np.ndarray | None = None,\n    key:",
        "test_layers.py", "short",
    ),
    Fault(
        "the operator knows what stands above it", OPERATOR,
        "from torch import Tensor\n",
        "from torch import Tensor\n\nfrom cassi.running import result\n",
        "test_layers.py", "lies_below",
    ),
    Fault(
        "MATLAB's reversed axes left as they are", "cassi/files/formats/hdf5.py",
        "values = values.T if reverse else values",
        "values = values.reshape(entry.shape)",
        "test_files_reading.py", "keys_of_the_field or matlab",
    ),
    Fault(
        "a chunk cut short is read", "cassi/files/formats/hdf5.py",
        "limit if packed == [DEFLATE] else 0)",
        "0)",
        "test_files_hostile.py", "shorter_than_declared",
    ),
    Fault(
        "unsigned numbers of NetCDF read as signed", "cassi/files/formats/netcdf.py",
        'unsigned = dtype.kind == "i" and',
        'unsigned = dtype.kind == "u" and',
        "test_files_hostile.py", "unsigned",
    ),
    Fault(
        "checksums of a PNG passed over", "cassi/files/formats/png.py",
        "image.verify()",
        "image.load()",
        "test_files_hostile.py", "checksum",
    ),
    Fault(
        "a declared size is compared with itself", "cassi/files/container.py",
        "size <= BOMB_RATIO * stored",
        "size <= BOMB_RATIO * size",
        "test_files_hostile.py", "hole or bomb",
    ),
    Fault(
        "names with control characters are printed", "cassi/errors.py",
        "c if c.isprintable() else repr(c)[1:-1] for c in line",
        "c for c in line",
        "test_files_hostile.py", "terminal",
    ),
    Fault(
        "white level without the black level taken off", "cassi/files/scaling.py",
        "return Counts(black, white - black, saturation",
        "return Counts(black, white, saturation",
        "test_files_reading.py", "levels",
    ),
    Fault(
        "saturated only above the last count", "cassi/files/scaling.py",
        "else values >= self.saturation",
        "else values > self.saturation",
        "test_files_reading.py", "levels",
    ),
    Fault(
        "the last frame is no frame", "cassi/files/scaling.py",
        "return slice(frames % count, frames % count + 1)",
        "return slice(frames, frames + 1)",
        "test_files_frames.py", "last_frame",
    ),
    Fault(
        "sheared masks cut out at the first column", "cassi/files/layout.py",
        "np.stack([mask[c, :, s : s + width] for c, s in enumerate(starts)])",
        "np.stack([mask[c, :, :width] for c, s in enumerate(starts)])",
        "test_files_reading.py", "sheared",
    ),
    Fault(
        "the file's gain kept per count", "cassi/files/reading.py",
        "gain=None if gain is None else gain * counts.scale",
        "gain=gain",
        "test_files_reading.py", "smallest_bit_depth",
    ),
    Fault(
        "frames in the order of their letters", "cassi/files/frames.py",
        "return sorted(found, key=natural)",
        "return sorted(found)",
        "test_files_frames.py", "natural",
    ),
    Fault(
        "signals are not held back", "cassi/files/atomic.py",
        "            signal.signal(number, hold)\n",
        "            pass\n",
        "test_files_writing.py", "signals_wait",
    ),
    Fault(
        "an existing file is replaced without asking", "cassi/files/atomic.py",
        "if existing.exists() and not overwrite:",
        "if existing.exists() and overwrite is None:",
        "test_files_writing.py", "existing",
    ),
    Fault(
        "what was written is not compared", "cassi/files/writing.py",
        "values.size and not _same(container, entry, values)",
        "values.size and not _same(container, entry, container.read(entry))",
        "test_files_writing.py", "noticed",
    ),
    Fault(
        "a changed input counts as finished", "cassi/running/many.py",
        "made_from = json.dumps([common, content, frame.index]",
        "made_from = json.dumps([common, frame.path, frame.index]",
        "test_running_many.py", "another_input",
    ),
    Fault(
        "frame 10 before frame 2", "cassi/running/many.py",
        "    for file in sorted(found, key=natural):",
        "    for file in sorted(found):",
        "test_running_many.py", "natural",
    ),
    Fault(
        "an interrupted frame is written all the same", "cassi/running/many.py",
        "    if turn.over():\n        raise CancelledError",
        "    if False:\n        raise CancelledError",
        "test_running_many.py", "over",
    ),
    Fault(
        "a frame computed anew keeps its old mark meanwhile", "cassi/running/stores.py",
        'if group["fingerprint"][number].any():', "if False:",
        "test_kill.py", "zarr",
    ),
    Fault(
        "weights are written in place", "cassi/priors/learned.py",
        'partial = Path(f"{path}.partial")', "partial = Path(path)",
        "test_kill.py", "weights",
    ),
    Fault(
        "a black snapshot is taken for one", "cassi/optics/measurement.py",
        "if np.all(high - low <= ROUNDING", "if np.all(high - low < -ROUNDING",
        "test_cli_reconstruct.py", "without_a_scene",
    ),
    Fault(
        "a result is taken for a snapshot", "cassi/files/reading.py",
        "if options.key is None and is_result(container):", "if options.key is not None and is_result(container):",
        "test_cli_reconstruct.py", "a_result",
    ),
    Fault(
        "a bit depth scales fractions", "cassi/files/scaling.py",
        "if largest < max(FEWEST_COUNTS,", "if largest < min(FEWEST_COUNTS / 99,",
        "test_cli_reconstruct.py", "bit_depth_is_for",
    ),
    Fault(
        "the bar goes back", "cassi/running/progress.py",
        "self.done, ahead = max(self.done, done), max(0.0, done - self.done)",
        "self.done, ahead = done, done - self.done",
        "test_running_progress.py", "never_goes_back",
    ),
    Fault(
        "every white reference is even", "cassi/running/white.py",
        "if value <= STRUCTURED:", "if value <= 99 * STRUCTURED:",
        "test_running_white.py", "no_white or command_line",
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
    Fault(
        "numbers on a device are never read before the end", RESULT,
        "and not last and len(self._pending) < self._every:",
        "and not last:",
        "test_solvers_loop.py", "device",
    ),
    Fault(
        "a late divergence names the iteration at which it was read", RESULT,
        "record = Record(len(self._history) + 1,",
        "record = Record(len(self._history) + len(pending),",
        "test_solvers_loop.py", "device",
    ),
]  # fmt: skip


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

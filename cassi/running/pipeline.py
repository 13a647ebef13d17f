"""The way from a measurement to a result, the same for one snapshot, a folder, a sequence or a frame in tiles.

    m = load(...) or a reader of files           bytes or arrays to a `Measurement`              in arguments.py
    settings = open_files(settings)              what they name is read                          in arguments.py
    m = check(m)                                 compare snapshot and mask, look for faults      helpers in concerns.py
    scene = prepare_scene(m)                     search for the camera, put both on the device   helpers in scene.py
    outcomes = solve_frames(scene)               choose and solve                                in cassi/choice
    result = assemble(scene, outcomes)           the cube, its residual, its camera              helpers in result.py
    result = divide_by_white(result)             where there is a white reference                helpers in white.py
    result = turn_and_resample(result)           turned, at other wavelengths                    in result.py
    result = explain(result)                     what speaks against the result                  helpers in concerns.py
    write_result(path, result)                   the file                                        in result.py

Whole frames, tiles, frames of a sequence and photographs differ in `solve_frames` alone; the cube of tiles lies in a
file. Everything that is inferred or doubted on the way is among the notes of the result's measurement, in this order.

The way through, from the call to the arithmetic of a default run:

    reconstruct                running/reconstruct.py      arguments to a measurement
    reconstruct_measurement    running/pipeline.py         the steps above
    solve_frames               running/pipeline.py         each snapshot, divided by its brightness
    reconstruct_auto           choice/automatic.py         a pilot chooses noise and spectra
    run_stages                 choice/automatic.py         total variation, then what the judge accepts
    Tv.run                     choice/stages.py            one stage
    subspace_tv                solvers/subspace_tv.py      lines of code for those of its equation
    subspace_step              kernels/cpu.py              `CASSI.fused_step`: the same in one; `gpu.py` on CUDA
    share_out                  kernels/threads.py          runs `_subspace_step`, the loop over pixels, on all cores

The prox of total variation is `tv_steps` (priors/tv.py, on a CPU kernels/cpu_tv.py), the pilot `explore_snapshot`
(choice/automatic.py). The other stages are run by `run_chains` (choice/chain.py): `NonLocal.begin` calls
`subspace_tv` with another denoiser, `Learned.run` calls `unrolled`, whose data step is `_DataStep` and `_solve`
(solvers/unrolled.py), with `forward` and `adjoint` (kernels/shift_sum.py).
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, cast

import torch
from torch import Tensor

from cassi.choice.automatic import reconstruct_auto, repeat_plans, window
from cassi.choice.by_name import solve_by_name
from cassi.choice.mirrors import Views
from cassi.choice.outcome import Outcome
from cassi.choice.plan import Plan
from cassi.choice.stages import Watch
from cassi.errors import InputError
from cassi.evidence.texture import unresolved_bands
from cassi.files.cubes import resampling
from cassi.kernels.caller import undisturbed
from cassi.kernels.dispatch import pick_device
from cassi.optics.cropping import Block, crop, residual_by_strips
from cassi.optics.detector import brightness
from cassi.optics.imprint import imprint_on
from cassi.optics.mask_match import compare_with_mask
from cassi.optics.measurement import Measurement, same_values
from cassi.optics.protocol import Camera
from cassi.photograph.picture import SidePicture
from cassi.priors.learned import DEFAULT, LearnedPrior
from cassi.running.arguments import open_files, subtract_dark
from cassi.running.concerns import OF_MEASUREMENT, OF_REFLECTANCE, OF_RESULT, Reflectance, bend_of, concerns_of, misfit
from cassi.running.once import Once
from cassi.running.progress import CAMERA, SIDE, WHITE, run_label
from cassi.running.result import Reconstruction, turn_and_resample
from cassi.running.scene import Scene, prepare
from cassi.running.white import Light, check_white, light_of, read_board, reflectance
from cassi.self_calibration import search
from cassi.self_calibration.found_camera import FoundCamera
from cassi.settings import Settings
from cassi.solvers.loop import Monitor, relative_norm
from cassi.types import PathLike, Progress

MAX_BATCH = 2**4  # frames that a GPU solves at a time, at most
CUBES_AT_ONCE = 24  # working memory of a reconstruction, in cubes, generously
GROUPS_ON_DEVICE = 1 << 29  # bytes that `cassi.priors.nonlocal_lowrank` works in besides, on a GPU, at most
FINDABLE_KINDS = ("displaced", "bands or blur")  # kinds of a misfit that a search for the camera may end


def ignore(*_: object) -> None:
    """Hear nothing."""


@dataclass(frozen=True)
class Listener:
    """Who hears of a run as it goes."""

    progress: Progress = ignore  # the name of a step and the share of it that is done
    inform: Callable[[str], None] = ignore  # what was inferred or found
    warn: Callable[[str], None] = ignore  # what speaks against the measurement or the result
    monitor: Monitor | None = None  # the iterations, as for `cassi.reconstruct`


SolveFrames = Callable[[Scene, Settings, Listener, float], list[Outcome]]


@undisturbed
def reconstruct_measurement(
    m: Measurement | Scene,
    settings: Settings,
    listener: Listener = Listener(),
    solve: SolveFrames | None = None,
    lights: Once[Light] | None = None,
    *,
    in_file: bool = False,
) -> Reconstruction:
    """Reconstruct a measurement as the settings say, or a scene that is prepared already; by `solve_frames`, or one
    that takes its place, whose cubes may lie `in_file`. `lights` keeps the white reference of several scenes through
    one camera."""
    solve = solve or solve_frames
    start, settings = time.perf_counter(), open_files(settings)
    if not isinstance(settings.white, Measurement | None):
        raise InputError(f"white must be a Measurement, got {type(settings.white).__name__}", kind="range")
    if isinstance(m, Measurement):
        m, settings = subtract_dark(m, settings)
        m = prepare_scene(check(m, settings, listener), settings, listener)
    light = None
    if settings.white is not None:  # what is wrong with it shows first
        light = (lights or Once()).get("white", partial(solve_white, m, settings, listener, solve, in_file))
    result = assemble(m, solve(m, settings, listener, start), settings, start, in_file=in_file)
    result = result if light is None else divide_by_white(result, light, settings, listener)
    return explain(turn_and_resample(result, settings, listener.inform), listener)


def check(m: Measurement, settings: Settings, listener: Listener) -> Measurement:
    """The measurement with its comparison with the mask, and with what speaks against it among its notes."""
    fits = compare_with_mask(m)
    if fits.matches:
        listener.inform(fits.verdict)
    elif settings.camera == "align" and fits.kind == "wrong mask":
        raise InputError(f"there is nothing to align: {fits.verdict}; use another mask", kind="wrong mask")
    elif settings.searches and fits.kind in FINDABLE_KINDS:
        listener.inform(f"{fits.verdict}; the camera is searched for")
    elif isinstance(settings.camera, str):
        listener.warn(misfit(fits))
    if isinstance(settings.white, Measurement):
        check_white(m, settings.white)
        read_board(settings.white_reflectance)
    if settings.output_bands is not None:
        resampling(m.wavelengths, settings.output_bands)  # raises what is wrong with them
    return replace(with_concerns(m, concerns_of(OF_MEASUREMENT, m), listener), check=fits)


Known = TypeVar("Known", Measurement, Measurement | None)


def with_concerns(m: Known, concerns: Sequence[str], listener: Listener) -> Known:
    """The measurement, if there is one, with what speaks against it in its notes; the listener is warned."""
    for text in concerns:
        listener.warn(text)
    return m if m is None else replace(m, notes=(*m.notes, *concerns))


def search_camera(m: Measurement, settings: Settings, listener: Listener) -> FoundCamera | None:
    """The camera as given in the settings or found from the measurement; None: as it is in the measurement."""
    if isinstance(settings.camera, FoundCamera):
        return settings.camera
    if not settings.searches:
        return None
    return find_with_settings((m,), settings, partial(listener.progress, CAMERA))


def find_with_settings(
    measurements: Sequence[Measurement], settings: Settings, report: Callable[[float], None]
) -> FoundCamera:
    """The camera of measurements, with the network of the run, and without one where that has none."""
    learned = settings.solver == "auto" and settings.prior in ("auto", "learned") and settings.num_iters is None
    weights: PathLike | LearnedPrior | None = (settings.weights or DEFAULT) if learned else None
    if settings.plan is not None:
        weights = cast(Plan, open_files(settings).plan).learned
    return search.find_camera(
        *measurements,
        black_level=settings.black_level,
        seed=settings.seed,
        dispersion=settings.camera == "align",
        mask_error=settings.quality != "fast",
        weights=weights,
        device=pick_device(settings.device),
        report=report,
    )


def prepare_scene(m: Measurement, settings: Settings, listener: Listener) -> Scene:
    """Search for the camera of a checked measurement, and prepare it; says whether the mask fits now."""
    scene = prepare(m, search_camera(m, settings, listener), settings)
    fits, expected = scene.check, m.check is not None and m.check.kind in FINDABLE_KINDS
    if fits is not None and not fits.matches and (expected or isinstance(settings.camera, FoundCamera)):
        listener.warn(misfit(fits))
    elif fits is not None and fits.matches and m.check is not None and not m.check.matches:
        listener.inform(f"with the camera that was found, {fits.verdict}")
    return scene


@torch.no_grad()
def solve_frames(scene: Scene, settings: Settings, listener: Listener, start: float) -> list[Outcome]:
    """Solve each snapshot at brightness 1, within an equal share of the remaining time; cubes are in the unit of y."""
    side = settings.side if isinstance(settings.side, SidePicture) else None  # `open_files` has read its file
    if side is not None:
        from cassi.photograph.solver import check_side, solve_beside  # loads much that no other run needs

        check_side(side, scene.A.cube_shape[0], scene.num_scenes)
    outcomes: list[Outcome] = []
    batches = math.ceil(scene.num_scenes / most_together(scene.A, settings, listener))
    several = math.ceil(scene.num_scenes / batches)
    for k, y in enumerate(scene.frames):
        if k < len(outcomes):  # solved with others
            continue
        if several > 1:
            outcomes += solve_together(scene, settings, listener, range(k, min(k + several, scene.num_scenes)))
            continue
        bright, name = brightness(scene.A, y), run_label(k, scene.num_scenes)
        watch = Watch(listener.monitor, _prefixed(listener.progress, name), deadline(settings, start, scene, k))
        scaled, nm = scale_plan(settings, bright), scene.wavelengths
        if settings.solver == "auto":
            noise = scene.noise.scaled(1 / bright)
            outcome = reconstruct_auto(scene.A, y / bright, wavelengths=nm, noise=noise, settings=scaled, watch=watch)
        else:
            outcome = solve_by_name(scene.A, y / bright, wavelengths=nm, settings=scaled, watch=watch)
        if side is not None and outcome.result.status != "stopped":
            listener.progress(SIDE, 0.0)
            watch = Watch(listener.monitor, lambda _, share: listener.progress(SIDE, share))
            outcome = solve_beside(scene.A, y / bright, outcome, side, scene.wavelengths, settings, watch)
        outcomes.append(with_scene_facts(outcome.scaled(bright), scene, k))
    return outcomes


def may_join(A: Camera, settings: Settings, listener: Listener = Listener()) -> bool:
    """Whether a frame may be solved together with others: on a GPU, where a plan leaves nothing open."""
    plan, watched = settings.plan, listener.monitor is not None or settings.budget is not None  # each frame by itself
    if A.device.type != "cuda" or settings.solver != "auto" or not isinstance(plan, Plan) or watched:
        return False
    return not any(stage.of_one_scene for stage in plan.stages)


def most_together(A: Camera, settings: Settings, listener: Listener = Listener()) -> int:
    """How many frames may be solved at a time, as far as memory is free now."""
    if not may_join(A, settings, listener):
        return 1
    stages = cast(Plan, settings.plan).stages
    views = max((stage.count for stage in stages if isinstance(stage, Views)), default=1)
    return min(MAX_BATCH, frames_that_fit(A.device, views * math.prod(A.cube_shape)))


def frames_that_fit(device: torch.device, values: int) -> int:
    """How many frames with cubes of this many values fit into the free memory of a GPU together; at least 1."""
    bytes_each = CUBES_AT_ONCE * values * torch.float32.itemsize + GROUPS_ON_DEVICE
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, for what comes
    return max(1, (torch.cuda.mem_get_info(device)[0] + kept) // bytes_each)


def solve_together(scene: Scene, settings: Settings, listener: Listener, ks: range) -> list[Outcome]:
    """`solve_frames` for some frames in one batch, with the plan of the settings."""
    frames = scene.frames[ks.start : ks.stop]
    each = [brightness(scene.A, y) for y in frames]
    plans = [cast(Plan, scale_plan(settings, bright).plan) for bright in each]
    plans[0].check_bands(scene.A.cube_shape[0], scene.wavelengths)
    scaled = torch.stack([y / bright for y, bright in zip(frames, each, strict=True)])
    watch = Watch(progress=_prefixed(listener.progress, run_label(ks.start, scene.num_scenes)))
    outcomes = repeat_plans(scene.A, scaled, plans, settings, watch)
    solved = zip(ks, outcomes, each, strict=True)
    return [with_scene_facts(outcome.scaled(bright), scene, k) for k, outcome, bright in solved]


def deadline(settings: Settings, start: float, scene: Scene, k: int) -> float:
    """When frame k has to be done: an equal share of what is left of the budget."""
    if settings.budget is None:
        return math.inf
    now = time.perf_counter()
    return now + max(0.0, start + settings.budget - now) / (scene.num_scenes - k)


def scale_plan(settings: Settings, bright: float) -> Settings:
    """The settings for a snapshot divided by its brightness, which divides the noise of a plan."""
    plan = settings.plan  # `open_files` has read its file
    return replace(settings, plan=plan.scaled(1 / bright)) if isinstance(plan, Plan) else settings


def with_scene_facts(outcome: Outcome, scene: Scene, k: int = 0) -> Outcome:
    """The outcome of frame k with what is known of its scene."""
    black, estimated = scene.black_levels[k], scene.black_is_estimated
    return replace(outcome, black_level=black, black_level_estimated=estimated, doubt=scene.doubt)


@torch.no_grad()
def assemble(
    scene: Scene, outcomes: Sequence[Outcome], settings: Settings, start: float, *, in_file: bool = False
) -> Reconstruction:
    """The result of all snapshots; the bands of a camera that was aligned are moved to where they belong.

    Of a cube `in_file`, which may be larger than memory, the residual is taken by strips of rows, and imprint and
    texture are those of its most telling part.
    """
    A, y, camera = scene.A, scene.y, scene.found
    single = y.ndim == len(A.measurement_shape)

    def stack_if_several(cubes: list[Tensor]) -> Tensor:
        return cubes[0] if single else torch.stack(cubes)

    def register(cube: Tensor) -> Tensor:
        return cube if camera is None or not camera.accepted else camera.register(cube)

    cube = stack_if_several([outcome.result.x for outcome in outcomes])
    spreads = [outcome.uncertainty for outcome in outcomes if outcome.uncertainty is not None]
    residual_image = residual_by_strips(cast(Block, A), y, cube) if in_file else y - A.forward(cube)
    first, seen_by = cube if single else cube[0], A
    if in_file:
        part = window(A, y) or tuple(slice(0, n) for n in first.shape[-2:])
        first, seen_by = first[:, *part].to(y.device), crop(cast(Block, A), y, *part)[0]
    order, nothing = ("stopped", "finished", "converged"), y.new_zeros(())
    return Reconstruction(
        cube=register(cube),
        residual_image=residual_image,
        uncertainty=register(stack_if_several(spreads)) if spreads else None,
        visibility=A.visibility() if spreads and not in_file else None,
        wavelengths=scene.wavelengths,
        history=tuple(record for outcome in outcomes for record in outcome.result.history),
        status=min((outcome.result.status for outcome in outcomes), key=order.index),
        residual=relative_norm(residual_image, y),
        seconds=time.perf_counter() - start,
        outcomes=tuple(replace(one, result=replace(one.result, x=nothing), uncertainty=None) for one in outcomes),
        parameters=settings.as_dict() | scene.parameters,
        unit=scene.unit,
        camera=camera,
        imprint=imprint_on(first, seen_by),
        bend=bend_of(y, residual_image),
        unresolved=unresolved_bands(first),
        measurement=scene.measurement,
        check=scene.check,
    )


def solve_white(
    scene: Scene, settings: Settings, listener: Listener, solve: SolveFrames, in_file: bool = False
) -> Light:
    """The light on a white reference, by the camera and the settings of a scene; InputError for one that is none."""
    start, white = time.perf_counter(), cast(Measurement, settings.white)
    if (m := scene.measurement) is not None and not same_values(m.sensitivity, white.sensitivity):
        listener.warn(
            "snapshot and white reference state different sensitivities of detector pixels, or one states none: the "
            "snapshot's are used for both"
        )
        white = replace(white, sensitivity=m.sensitivity)
    quiet = Listener(_prefixed(listener.progress, WHITE))
    camera = scene.found or ("as-given" if settings.searches else settings.camera)
    same = replace(settings.without_white(), uncertainty=False, side=None, camera=camera)
    prepared = prepare_scene(replace(white, check=scene.check), same, quiet)
    board = assemble(prepared, solve(prepared, same, quiet, start), same, start, in_file=in_file)
    return Light(light_of(board.cube, board.imprint), white.source)


def divide_by_white(result: Reconstruction, light: Light, settings: Settings, listener: Listener) -> Reconstruction:
    """The result as reflectance, by the light on a white reference."""
    source = f"divided by the light on the white reference {light.source}".rstrip()
    listener.inform(f"{source}: the cube is reflectance")
    board, exposure, m = read_board(settings.white_reflectance), settings.exposure_ratio, result.measurement
    result = reflectance(result, light.values, board=board, exposure=exposure)
    m = m if m is None else replace(m, cube=None, mean_band=None)  # what is known of the truth is radiance
    against = concerns_of(OF_REFLECTANCE, Reflectance(light.values, result.cube, result.wavelengths))
    return replace(result, measurement=with_concerns(m, against, listener))


def _prefixed(progress: Progress, prefix: str) -> Progress:
    return lambda step, share: progress(prefix + step, share)


def explain(result: Reconstruction, listener: Listener) -> Reconstruction:
    """The result with its comparison with the mask, and what speaks against it, among the notes of its measurement."""
    m, check = result.measurement, result.check
    concerns = concerns_of(OF_RESULT, result) if check is None or check.matches else ()  # else they follow from that
    if m is not None and check is not None:
        m = replace(m, notes=(*m.notes, check.verdict))
    return replace(result, measurement=with_concerns(m, concerns, listener))

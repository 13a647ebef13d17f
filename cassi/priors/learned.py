"""A learned prior: a small network that corrects coefficient images, independent of the optics.

    (f, g, h') = net(z / s, d / s, seen, noise, h)

z are coefficient images of a smooth spectral basis, d the correction implied by the measurement alone, `seen` and
`noise` (H, W) the visibility and noise of each pixel; f is the correction of the network in units of s, g in (0, 1) the
share of the next d to apply, h features for its next call. s_k = L sqrt(C) (k + 1)^-1.4 with L the level of the objects
in the scene, so that all images are of order 1 for any unit, number and range of bands.

Blocks of 2 x 2 pixels become channels, which makes wide layers cheap, and two coarser scales see far. Scales and the
space of few spectral components follow "LRDUN" (Gao et al., CVPR 2026), with plain convolutions.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import math
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cassi.errors import InputError, one_line
from cassi.types import PathLike

# Shipped weights by what they may be used for (MODEL_CARD.md), and the SHA-256 of KIND.safetensors.
KINDS = {
    "free": "c7bd24e5d8b687f1f06abe61271650517d84c09e1ada9d8980e574772486b9cf",
    "research": "71312c9a0710c966f165b95f53c03a6955e9f781224590278b4a37fc62bd8e2c",
}
USES = {"free": "free for any use", "research": "for research only"}
DEFAULT = "free"
MIN_BANDS = 8  # of the cameras in training
MULTIPLE = 8  # to which images are padded, as the network halves them three times [pixel]
MAX_SIZE = 4096  # of anything of a network in a file
_COPYING = threading.Lock()
_NUM_MAPS = 2  # inputs besides z and d: visibility and noise of each pixel


@dataclass(frozen=True)
class Size:
    """The size of a network, stored with its weights: channels and residual blocks at each scale."""

    components: int = 12  # K, coefficient images
    stages: int = 4  # applications of the network
    memory: int = 8  # feature images passed from one stage to the next
    width: int = 64  # at half the resolution
    blocks: int = 2
    deep_width: int = 96  # at a quarter of it
    deep_blocks: int = 4
    far_width: int = 128  # at an eighth of it
    far_blocks: int = 3
    light: int = 0  # 1 if the mean of each coefficient image, the light of the scene, is another input
    turns: int = 1  # in which it was trained: later ones start from better cubes


class ResidualBlock(nn.Module):
    """x + W_2 relu(W_1 x), with convolutions of 3 x 3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        for p in self.second.parameters():
            nn.init.normal_(p, std=0.3 * (9 * channels) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(F.relu(self.first(x)))
        return out


class CorrectionNet(nn.Module):
    """A three-scale residual network on images (N, inputs + memory, H, W) -> (N, outputs + memory, H, W).

    All stages of all turns share the weights, except for a bias of the first layer that depends on the stage.
    """

    def __init__(self, inputs: int, outputs: int, size: Size) -> None:
        super().__init__()
        width, deep, far = size.width, size.deep_width, size.far_width
        self.enter = nn.Conv2d(4 * (inputs + size.memory), width, 3, padding=1)
        self.stage_bias = nn.Parameter(torch.zeros(size.turns * size.stages, width))
        self.light = nn.Linear(size.components, width, bias=False) if size.light else None
        self.fine_in = nn.Sequential(*(ResidualBlock(width) for _ in range(size.blocks)))
        self.down = nn.Conv2d(width, deep, 2, stride=2)
        self.deep_in = nn.Sequential(*(ResidualBlock(deep) for _ in range(size.deep_blocks // 2)))
        self.down_far = nn.Conv2d(deep, far, 2, stride=2)
        self.far = nn.Sequential(*(ResidualBlock(far) for _ in range(size.far_blocks)))
        self.up_far = nn.ConvTranspose2d(far, deep, 2, stride=2)
        self.deep_out = nn.Sequential(*(ResidualBlock(deep) for _ in range(size.deep_blocks - size.deep_blocks // 2)))
        self.up = nn.ConvTranspose2d(deep, width, 2, stride=2)
        self.fine_out = nn.Sequential(*(ResidualBlock(width) for _ in range(size.blocks)))
        self.leave = nn.Conv2d(width, 4 * (outputs + size.memory), 3, padding=1)
        for p in (*self.leave.parameters(), *self.up_far.parameters()):
            nn.init.normal_(p, std=1e-3)  # so that a new network changes almost nothing

    def forward(self, images: Tensor, stage: int | Tensor, light: Tensor | None = None) -> Tensor:
        height, width = images.shape[-2:]
        x, missing = images.to(self.enter.weight.dtype), (0, -width % MULTIPLE, 0, -height % MULTIPLE)
        x = F.pad(x, missing, mode="replicate") if any(missing) else x
        last = torch.channels_last  # before and after: from there it takes half the time
        x = F.pixel_unshuffle(x.contiguous(memory_format=last), 2).contiguous(memory_format=last)
        bias = self.stage_bias[stage] if isinstance(stage, int) else self.stage_bias.index_select(0, stage)
        if self.light is not None and light is not None:
            bias = bias + self.light(light.to(bias.dtype))
        x = self.enter(x)
        # in training the sums of the blocks are in bfloat16, too, if the convolutions are
        fine = self.fine_in(x + (bias.to(x.dtype) if self.training else bias)[..., None, None])
        deep = self.deep_in(self.down(fine))
        deep = self.deep_out(deep + self.up_far(self.far(self.down_far(deep))))
        fine = self.fine_out(fine + self.up(deep))
        out: Tensor = F.pixel_shuffle(self.leave(fine), 2)[..., :height, :width]
        return out.to(images.dtype)


def _bfloat16_is_fast(device: torch.device) -> bool:
    """Whether bfloat16 is faster than float32: twice with its instructions, but seven times slower on AVX2."""
    return device.type != "cpu" or torch.cpu._is_avx512_bf16_supported()


class LearnedPrior(nn.Module):
    """The network and the expected errors of coefficients: the trained part of `cassi.solvers.unrolled`.

    Args:
        size: see `Size`.

    Attributes:
        log_tau: (turns (stages + 1), K) logarithm of the expected error of coefficient k, in units of s_k, at each data
            step.
        log_floor: (turns (stages + 1),) logarithm of the variance due to errors of camera models, in units of
            L^2 diag(Phi Phi^T).
        source: shipped weights or file that it was read from.
        coarse: whether convolutions on a CPU are in bfloat16 where that is faster, as in training: cubes change by less
            than 0.04 dB.
    """

    source, coarse = "", False

    def __init__(self, size: Size | None = None) -> None:
        super().__init__()
        self.size = Size() if size is None else size
        self._copies: dict[torch.device, LearnedPrior] = {}
        components, steps = self.size.components, self.size.turns * (self.size.stages + 1)
        self.net = CorrectionNet(2 * components + _NUM_MAPS, 2 * components, self.size)
        self.log_tau = nn.Parameter(torch.full((steps, components), math.log(0.1)))
        self.log_floor = nn.Parameter(torch.full((steps,), math.log(3e-4)))

    @property
    def weights(self) -> str:
        """Its weights in words, and what they may be used for."""
        if self.source in USES:
            return f"the {self.source} weights ({USES[self.source]})"
        return f"weights of your own ({self.source or 'in memory'})"

    def on(self, device: torch.device) -> LearnedPrior:
        """The prior on a device: itself, or a cached copy, as others may use this one at the same time."""
        if self.log_tau.device == device:
            return self
        with _COPYING:
            if device not in self._copies:
                self._copies[device] = copy.deepcopy(self, {id(self._copies): {}}).to(
                    device
                )  # without the other copies
            return self._copies[device]

    def of_turn(self, turn: int | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log_tau (T + 1, K) and log_floor (T + 1,) of a turn, a number or a tensor (1,), and its stages (T,).

        Turns after the last that it was trained in are like that one.
        """
        T, last, device = self.size.stages, self.size.turns - 1, self.log_tau.device
        if isinstance(turn, Tensor):
            each, turn = torch.arange(T + 1, device=device), turn.clamp(max=last)
            steps = turn * (T + 1) + each
            return self.log_tau.index_select(0, steps), self.log_floor.index_select(0, steps), turn * T + each[:-1]
        turn = min(turn, last)
        rows, stages = (
            slice(turn * (T + 1), (turn + 1) * (T + 1)),
            torch.arange(turn * T, (turn + 1) * T, device=device),
        )
        return self.log_tau[rows], self.log_floor[rows], stages

    def spread(self) -> Tensor:
        """(k + 1)^-1.4, the usual standard deviation of coefficient k relative to L sqrt(C); (K,) float32."""
        return torch.arange(1, self.size.components + 1, device=self.log_tau.device, dtype=torch.float32) ** -1.4

    def forward(
        self, z: Tensor, d: Tensor, seen: Tensor, noise: Tensor, memory: Tensor | None, stage: int | Tensor,
        light: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """One correction of N stacks of images, of up to K components.

        Args:
            z, d: (N, K', H, W), K' <= K, in units of s.
            seen, noise: (N, 1, H, W).
            memory: of the previous call, (N, memory, H, W); None at first.
            stage: its number as `of_turn` gives it, or that as a tensor (1,).
            light: (N, K'), the mean of each image of the start, in units of s; used only by some networks.

        Returns:
            f and g (N, K', H, W), and the memory for the next call.
        """
        count = z.shape[1]
        if memory is None:
            memory = z.new_zeros((len(z), self.size.memory, *z.shape[2:]))
        none = z.new_zeros((len(z), self.size.components - count, *z.shape[2:]))
        # d, whose expected size starts at tenths of s, is brought nearer to that of z
        images = torch.cat([z, none, 3 * d, none, seen, noise, memory], 1)
        half = (self.training or (self.coarse and z.is_cpu)) and _bfloat16_is_fast(z.device)
        with torch.autocast(z.device.type, torch.bfloat16, enabled=half):
            light = None if light is None else F.pad(light, (0, self.size.components - count))
            out = self.net(images, stage, light)
        f, g, memory = out.split((self.size.components, self.size.components, self.size.memory), 1)
        return f[:, :count], torch.sigmoid(4 * g[:, :count] - 2), memory


def packed(prior: LearnedPrior, *, licence: str = "") -> bytes:
    """The bytes of a safetensors file of a prior, in half precision; equal priors give equal bytes."""
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().half().contiguous() for name, value in prior.state_dict().items()}
    data = save(tensors, {name: str(value) for name, value in asdict(prior.size).items()} | {"licence": licence})
    end = 8 + int.from_bytes(data[:8], "little")  # of the header, whose order is random
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":"))
    return data[:8] + header.encode().ljust(end - 8) + data[end:]


class _NoRandomNumbers(TorchFunctionMode):
    """Makes networks without the random numbers they begin with: for tensors without values these load a compiler."""

    RANDOM = frozenset({"normal_", "uniform_", "kaiming_uniform_"})  # of tensors, and of `torch.nn.init`

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        return (*args, kwargs.get("tensor"))[0] if func.__name__ in self.RANDOM else func(*args, **kwargs)


def load_prior(source: PathLike = DEFAULT) -> LearnedPrior:
    """Read a prior: shipped weights, by their name in `KINDS`, or a file of scripts/train.py.

    The checksum of shipped weights is verified. Write ./free for a file named "free".

    Raises:
        InputError: no file of a prior, a damaged one, inconsistent sizes, or values that are not finite.
    """
    from safetensors import SafetensorError, safe_open

    name = shipped_weights(source) if source in KINDS else Path(source)
    if os.path.exists(name) and not os.path.isfile(name):
        what = "is a folder" if os.path.isdir(name) else "is a pipe or device"
        raise InputError(f"{name}: {what}, expected the weights that scripts/train.py writes; name the file in it")
    if os.path.isfile(name) and not name.stat().st_size:
        raise InputError(f"{name}: is empty, expected the weights that scripts/train.py writes; copy the file again")
    try:
        with safe_open(name, framework="pt") as file:
            fields = {"light": "0", "turns": "1"} | (file.metadata() or {})  # older weights lack these fields
            size = {field: int(fields[field]) for field in asdict(Size())}
            if not all(int(field != "light") <= value <= MAX_SIZE for field, value in size.items()):
                raise ValueError(f"sizes out of range: {size}")
            if 2 * size["blocks"] + size["deep_blocks"] + size["far_blocks"] > len(file.keys()):
                raise ValueError(f"{len(file.keys())} tensors are too few for the sizes {size}")
            with torch.device("meta"), _NoRandomNumbers():  # no memory until the shapes are known to be the file's
                prior = LearnedPrior(Size(**size))
            expected = {key: list(value.shape) for key, value in prior.state_dict().items()}
            if expected != (stored := {key: file.get_slice(key).get_shape() for key in file.keys()}):  # noqa: SIM118
                wrong = min(key for key in {*expected, *stored} if expected.get(key) != stored.get(key))
                raise ValueError(f"'{wrong}' is {stored.get(wrong)}, expected {expected.get(wrong)}")
            state = {key: file.get_tensor(key).float() for key in stored}
        prior.load_state_dict(state, assign=True)
    except OSError as error:
        raise InputError(
            f"{name}: cannot be read ({one_line(error)}); give free, research or a file of scripts/train.py"
        ) from error
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise InputError(f"{name} is not a learned prior written by scripts/train.py: {one_line(error)}") from error
    if not all(bool(value.isfinite().all()) for value in state.values()):
        raise InputError(f"{name} holds values that are not finite; train again or use another checkpoint")
    own = os.path.basename(source)
    prior.source, prior.coarse = f"./{own}" if own in KINDS and source not in KINDS else own, True
    return prior.eval().requires_grad_(False)


def shipped_weights(kind: PathLike = DEFAULT) -> Path:
    """The file of shipped weights; InputError if they are damaged."""
    name, expected = Path(__file__).with_name(f"{kind}.safetensors"), KINDS[str(kind)]
    if hashlib.sha256(name.read_bytes()).hexdigest() != expected:
        raise InputError(f"{name} is damaged: its checksum is wrong; reinstall the program")
    return name


def shipped_prior(kind: str = DEFAULT) -> LearnedPrior:
    """Shipped weights by their name in `KINDS`, one copy for all that use them."""
    return _loaded(kind)


_loaded = functools.cache(load_prior)


def as_prior(weights: PathLike | LearnedPrior | None) -> LearnedPrior | None:
    """The network of weights given as themselves, by name or as a file (`load_prior`); None without any."""
    if weights is None or isinstance(weights, LearnedPrior):
        return weights
    return shipped_prior(str(weights)) if weights in KINDS else load_prior(weights)

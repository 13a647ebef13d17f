"""Double disperser, video and multi-shot cameras: what is theirs alone; `test_optics_contract.py` has the rest."""

import numpy as np
import pytest
import torch
from messages import refuses

from cassi.looking.metrics import psnr
from cassi.optics.multi_shot import MultiShot
from cassi.optics.other_cameras import double_disperser, video_camera
from cassi.optics.protocol import Camera
from cassi.optics.single_disperser import CASSI
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene
from cassi.solvers.gap import gap_tv


def test_the_double_disperser_shears_the_mask_and_not_the_scene():
    aperture = torch.tensor([[1.0, 2.0, 4.0, 8.0]])
    x = torch.zeros(3, 1, 2)
    x[2, 0, 1] = 1  # band 2 is filtered by the element two columns to the right of its pixel
    assert double_disperser(aperture, (0, 1, 2)).forward(x).tolist() == [[0, 8]]
    x = torch.zeros(3, 1, 2)
    x[2, 0, 0] = 1  # dispersed to the left, band 2 meets the first column
    assert double_disperser(aperture, (0, -1, -2)).forward(x).tolist() == [[1, 0]]


def test_single_precision_pinv_stays_bounded_where_masks_nearly_agree():
    mask = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    A = MultiShot((CASSI(mask, (0, 1, 2)), CASSI(mask * (1 + 1e-7), (0, 1, 2))))
    x = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert A.pinv(A.forward(x)).norm() < 1.01 * x.norm()


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda: double_disperser(torch.ones(4, 4), (0, 2, 4)), ValueError),
        (lambda: video_camera(torch.ones(4, 4)), ValueError),
        (lambda: MultiShot(()), ValueError),
        (lambda: MultiShot((CASSI(torch.ones(4, 4), (0, 1)), CASSI(torch.ones(4, 4), (0, 2)))), ValueError),
        (lambda: MultiShot((CASSI(torch.ones(4, 4), (0, 1)), CASSI(torch.ones(4, 4).double(), (0, 1)))), TypeError),
        (lambda: double_disperser(np.ones((4, 9)), (0, 1)), TypeError),
        (lambda: video_camera(np.ones((3, 4, 4))), TypeError),
    ],
)
def test_errors_say_what_is_wrong(build, error):
    with refuses(error):
        build()


def test_two_shots_reconstruct_a_scene_better_than_one():
    scene = procedural_scene(48, 48, torch.linspace(450, 650, 8), generator=torch.Generator().manual_seed(1))

    def quality(A: Camera) -> float:
        return psnr(gap_tv(A, A.forward(scene), tv_weight=0.02, num_iters=40).x, scene)

    generator = torch.Generator().manual_seed(3)
    shots = tuple(CASSI(random_mask(48, 48, generator=generator), tuple(range(0, 16, 2))) for _ in range(2))
    assert quality(MultiShot(shots)) > quality(shots[0]) + 1

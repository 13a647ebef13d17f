"""Double disperser, video and multi-shot cameras: what is theirs alone; `test_optics_contract.py` has the rest."""

import numpy as np
import pytest
import torch
from messages import refused

from cassi import CASSI, MultiShot, double_disperser, video_camera


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
    refused(build, error=error)

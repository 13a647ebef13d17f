"""A camera with a photograph beside it, against dense matrices; and where a picture lies in another."""

import numpy as np
import pytest
import torch
from messages import refused
from torch import Tensor

from cassi import CASSI, MultiShot, SidePicture
from cassi.photograph.picture import expected_response
from cassi.photograph.similarity import Similarity
from cassi.photograph.view import SideView, scale_masks
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.subspace_tv import subspace_tv

F64 = torch.float64


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def camera(shots: int = 1) -> CASSI | MultiShot:
    cameras = tuple(CASSI(random(4, 5, seed=k), (0, 1, 2)) for k in range(shots))
    return cameras[0] if shots == 1 else MultiShot(cameras)


def test_the_pass_in_one_is_the_pass_in_steps():
    """The step that asks the camera for its own pass gives what forward and adjoint give."""

    class Stepwise(SideView):
        def fused_step(self, *args: object) -> None:
            return None

    A = CASSI(random(16, 16).float(), (0, 1, 2, 3))
    R, w = random(2, 4, seed=1).float(), random(2, 16, 16, seed=2).float()
    x = random(4, 16, 16, seed=3).float()
    cubes = []
    for kind in (SideView, Stepwise):
        B = kind(A, R, w)
        cubes.append(subspace_tv(B, B.forward(x), smooth_basis(4, 3), variance=1e-4, num_iters=20)[0].x)
    torch.testing.assert_close(cubes[0], cubes[1], atol=1e-4, rtol=1e-4)


def test_light_divided_out_of_the_scene_is_in_the_mask():
    A, light, x = camera(2), random(4, 5, seed=9) + 0.1, random(3, 4, 5)
    divided = scale_masks(A, light)
    assert divided is not None
    torch.testing.assert_close(divided.forward(x / light), A.forward(x))
    assert scale_masks(SideView(camera(), random(1, 3), random(1, 4, 5)), light) is None


@pytest.mark.parametrize(("R", "w"), [((2, 4), (2, 4, 5)), ((2, 3), (2, 4, 6))])
def test_sizes_that_do_not_fit(R, w):
    refused(SideView, camera(), random(*R), random(*w), error=ValueError)
    refused(SideView, camera(), -random(2, 3), random(2, 4, 5), error=ValueError)


def test_a_quarter_turn_and_a_displacement_by_hand():
    image = torch.arange(9, dtype=F64).view(1, 3, 3)
    moved, seen = Similarity(1.0, rows=1.0).sample(image, (3, 3))
    torch.testing.assert_close(moved[0, :2], image[0, 1:])
    assert seen.tolist() == [[True] * 3, [True] * 3, [False] * 3]
    # the content is turned clockwise in the picture: what lies on top of the scene lies on the right of the picture
    turned, _ = Similarity(1.0, 90.0).sample(torch.rot90(image, -1, (1, 2)), (3, 3))
    torch.testing.assert_close(turned, image)
    assert Similarity(500.0).sample(image, (3, 3))[0].isfinite().all()  # larger than the picture


def test_there_and_back():
    i = torch.arange(40, dtype=F64)
    image = (torch.sin(i / 5)[:, None] * torch.cos(i / 4))[None]
    pose = Similarity(1.3, 4.0, 1.5, -2.0)
    there, _ = pose.inverse.sample(image, (52, 52), spline=True)
    back, seen = pose.sample(there, (40, 40), spline=True)
    inner = (..., slice(6, -6), slice(6, -6))
    torch.testing.assert_close(back[inner], image[inner], atol=2e-3, rtol=0)
    assert bool(seen[6:-6, 6:-6].all())


@pytest.mark.parametrize(
    ("picture", "response"),
    [
        (np.ones((4, 4)), None), (np.ones(4), None),
        (np.zeros((20, 20)), None),
        (np.full((20, 20, 3), 128), None),
        (np.ones((20, 20)), "rgb"),
        (np.ones((20, 20, 3)), np.ones((2, 28))),
    ],
)  # fmt: skip
def test_pictures_that_cannot_be(picture, response):
    refused(SidePicture, picture, response)


def test_expected_curves_lie_where_the_colors_are():
    wavelengths = np.linspace(430, 700, 28)
    R = expected_response(3, wavelengths, 28)
    red, green, blue = (wavelengths[k] for k in R.argmax(1))
    assert blue < 480 < green < 570 < red
    np.testing.assert_allclose(R.sum(1), 1)

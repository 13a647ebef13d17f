"""A training on a CUDA device that is not there: no step waits for it; recorded ones, where there is one."""

import numpy as np
import pytest
import torch
from cuda_scenes import CUDA, scene
from pretend_device import Ledger, pretend_cuda
from test_priors_learned import SMALL
from torch import Tensor
from training.cameras import AnyCamera
from training.chance import Chance
from training.examples import Examples, draw_examples
from training.looks import Look, Looks, add_gradient, error_of_images, quick
from training.loop import new_prior
from training.scenes import Pictures, Scenes

from cassi.priors.spectral_basis import synthesise
from cassi.solvers.unrolled import error


def example(seed: int, device: torch.device | str = "cpu") -> Examples:
    """Of scenes made of one photograph, random spectra and a painted scene."""
    random, device = np.random.default_rng(0), torch.device(device)
    painted = (255 * scene(64, 31)[0].clamp(0, 1).sqrt()).byte().numpy()
    spectra = torch.from_numpy(random.random((20, 31))).float().to(device) + 0.1
    photographs = Pictures([random.integers(0, 256, (3, 40, 60)).astype(np.uint8)], device)
    scenes = Scenes(photographs, spectra, spectra, Pictures([painted], device))
    return draw_examples(Chance(seed, device), scenes, AnyCamera([]), 2, (16, 24), SMALL.components)


def test_a_step_of_a_training_waits_for_nothing(monkeypatch):
    """Or it could not be recorded."""
    monkeypatch.setattr("cassi.priors.learned._bfloat16_is_fast", lambda device: device.type != "cpu")
    monkeypatch.setattr("torch.autograd.grad", lambda loss, parameters: loss.backward())  # these are no leaves there
    monkeypatch.setattr("torch._foreach_add_", lambda grads, more, alpha: None)

    def errors_on(device: torch.device, ledger: Ledger | None = None) -> Tensor:
        prior, e = new_prior(SMALL, 0).to(device), example(0)
        e = e.with_tensors([t.to(device) for t in e.tensors])
        camera = e.camera.absolute()
        none = torch.zeros(1, dtype=torch.long).to(device)
        waits = ledger and ledger.waits.copy()
        look = Look(e, *quick(camera, e, 6), none)
        errors, _ = add_gradient(prior, camera, look, 1.0)
        assert ledger is None or ledger.waits == waits, ledger.told()
        return errors.cpu()

    expected = errors_on(torch.device("cpu"))
    with pretend_cuda() as ledger:
        torch.testing.assert_close(errors_on(CUDA, ledger), expected, rtol=1e-3, atol=1e-3)


def test_a_rehearsal_leaves_nothing_behind():
    """Also where it is not finite: 0 times infinity would stay in the gradients."""
    prior, e = new_prior(SMALL, 0), example(0)
    for p in prior.parameters():
        p.grad = torch.zeros_like(p)
    look = Look(e, *quick(e.camera, e, 6), torch.zeros(1, dtype=torch.long))
    look.z[0, 0, 0, 0] = torch.inf
    errors, _ = add_gradient(prior, e.camera, look, 0.0)
    assert not errors.isfinite().all() and all(not p.grad.any() for p in prior.parameters())


def test_examples_are_drawn_on_the_device():
    for seed in range(8):
        with pretend_cuda():
            assert {t.device for t in example(seed, CUDA).tensors} == {CUDA}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_recorded_looks_are_the_eager_ones():
    prior = new_prior(SMALL, 0).to("cuda")
    looks = Looks(prior, 0.5, 12)
    for seed in (*range(5), *range(3)):  # of five layouts, in turn
        e = example(seed, "cuda")
        look = looks.first(e)
        torch.testing.assert_close((look.z, look.variance), quick(e.camera, e, 12), rtol=1e-3, atol=1e-3)
        errors, _ = looks(look)
        grads = [p.grad.clone() for p in prior.parameters()]
        torch._foreach_zero_([p.grad for p in prior.parameters()])
        torch.testing.assert_close(errors, add_gradient(prior, e.camera, look, 0.5)[0], rtol=1e-3, atol=1e-3)
        for p, grad in zip(prior.parameters(), grads, strict=True):
            assert float((p.grad - grad).norm()) <= 0.05 * float(p.grad.norm()) + 1e-6
            p.grad.zero_()
    assert all(graph is not None for graph in looks.recorded.values())


def test_the_error_of_coefficient_images_is_that_of_their_cube():
    e = example(3)
    z = torch.randn(len(e.y), len(e.basis), *e.truth.shape[2:], generator=torch.Generator().manual_seed(0))
    for size in (1.0, 1e-3):
        images = torch.einsum("kc,nchw->nkhw", e.basis, e.truth) + size * e.truth.mean() * z
        torch.testing.assert_close(
            error_of_images(e.truth, e.basis)(images), error(synthesise(images, e.basis), e.truth), rtol=0, atol=1e-2
        )

"""A plan: from plain values and back, with the weights that it names."""

import json
import math

from messages import refused
from shots import SIZE, Oracle, auto, small_shot  # noqa: F401 (the fixture `shot`)
from test_priors_learned import stirred

from cassi import reconstruct
from cassi.choice.automatic import reconstruct_auto
from cassi.choice.plan import Plan
from cassi.priors.learned import KINDS, load_prior, packed, shipped_prior
from cassi.running.plan_file import save_plan
from cassi.settings import Settings


def test_a_plan_comes_back_from_plain_values_and_is_repeated(shot):
    found = auto(shot, weights=Oracle(shot))
    values = json.loads(json.dumps(found.plan.as_dict()))
    plan = Plan.from_dict(values, found.plan.learned)
    assert plan.as_dict() == found.plan.as_dict()
    again = reconstruct_auto(shot.A, shot.y, settings=Settings(plan=plan))
    assert again.plan.stages == found.plan.stages and again.evidence is None
    assert shot.error(again.result.x) < 1.2 * shot.error(found.result.x)
    plain = found.plan.as_dict()
    for wrong in (
        {}, *(plain | {"stages": [stage]} for stage in (["none", 1], ["tv", 1, 2], ["tv", -3], ["nonlocal", 1, 2.5])),
        plain | {"stages": [["nonlocal", 0, 2]]}, plain | {"stages": [["learned", 0]]}, plain | {"stages": []},
        plain | {"axis": [500.0] * 6}, plain | {"level": 1e300},
        plain | {"noise": plain["noise"] | {"alpha": "a"}}, plain | {"level": math.nan}, plain | {"axis": "x"},
        plain | {"vectors": [[math.nan] * 6]}, plain | {"axis": 5}, plain | {"vectors": []},
    ):  # fmt: skip
        refused(Plan.from_dict, wrong, found.plan.learned)


def test_a_plan_names_its_weights(shot, tmp_path):
    """A series goes on with the weights that it began with: what they may be used for differs."""
    values = auto(shot, weights=stirred(SIZE), prior="learned").plan.as_dict()
    refused(Plan.from_dict, values)
    for kind in KINDS:
        plan = Plan.from_dict(values | {"weights": kind})
        assert plan.learned is shipped_prior(kind) and plan.as_dict()["weights"] == kind
    del values["weights"]
    assert Plan.from_dict(values).learned is shipped_prior("research"), "as those before had it"
    own = tmp_path / "w.safetensors"
    own.write_bytes(packed(stirred(SIZE)))
    save_plan(tmp_path / "plan.json", Plan.from_dict(values, load_prior(own)))
    how = {"step": 1, "plan": tmp_path / "plan.json"}
    for plan in (how["plan"], Plan.from_dict(values)):
        found = reconstruct(shot.y, shot.A.mask, step=1, plan=plan, weights=own)
        assert found.plan.learned.source == own.name
        assert f"with weights of your own ({own.name})" in found.explain()
    refused(reconstruct, shot.y, shot.A.mask, **how)


def test_weights_from_a_file(shot, tmp_path):
    (tmp_path / "w.safetensors").write_bytes(packed(stirred(SIZE)))
    found = reconstruct(shot.y, shot.A.mask, step=1, prior="learned", weights=tmp_path / "w.safetensors")
    assert found.choice["learned"] is True
    assert found.parameters["weights"] == "w.safetensors"


def test_what_does_not_go_together_is_refused(shot, tmp_path):
    refused(Settings, prior="x")
    refused(Settings, solver="gap-tv", prior="tv")
    refused(Settings, prior="learned", num_iters=5)
    refused(Settings, prior="tv", weights=stirred(SIZE))
    (tmp_path / "w.safetensors").write_bytes(b"nothing")
    refused(reconstruct, shot.y, shot.A.mask, step=1, weights=tmp_path / "w.safetensors")

"""Results whose arrays or attributes are damaged: each is named in one line, and left out of what shows many."""

import json

import h5py
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from cassi.cli.main import main
from cassi.errors import InputError, parse_json
from cassi.files import write_cube
from cassi.files.writing import gather_cubes
from cassi.looking.overview import write_index
from cassi.looking.regions import Region, read_regions, spectrum_of
from cassi.looking.report_data import read_report
from cassi.looking.report_page import make_page
from cassi.running.many import read_record
from cassi.running.plan_file import load_plan

CUBE = np.random.default_rng(0).random((4, 8, 8)).astype(np.float32)
TEXTS = ["[" * 30_000, "[" * 200 + "]" * 200, '{"a":' * 90 + "1" + "}" * 90, "null", "5", '{"frames": 5}',
         '{"frames": []}', '{"frames": [3]}', '{"stages": [1, 2]}', '{"stages": {"a": 1}, "held_out_error": "x"}',
         '{"message": 5, "accepted": 1, "mask_error": [3]}', '{"imprint": 1e999}', "[[[]]]", "9" * 6000]  # fmt: skip
VALUES = [5, np.nan, np.arange(3), np.bytes_(b"\xff\xfe"), np.array([b"a", b"b"]), True, *TEXTS]
NAMES = ("choice", "parameters", "camera", "verdict", "ok", "unit", "concerns", "notes", "imprint", "fingerprint",
         "seconds", "input_name", "shifts")  # fmt: skip
ARRAYS = {
    "wavelengths": [np.full(4, np.nan), np.ones(3), np.zeros((0,)), "text"],
    "residual": [np.ones((3, 3)), np.full((8, 14), np.inf), 3.0],
    "measurement": [np.ones((2, 2, 2, 2)), np.full((8, 14), np.nan)],
    "truth": [np.ones((4, 8)), np.full((4, 8, 8), np.nan), CUBE[:2]],
    "uncertainty": [CUBE[..., :3], -CUBE],
    "cube": [np.full((4, 8, 8), np.nan), 1e38 * CUBE, CUBE.astype(complex), CUBE[:0]],
}


def write(path, attributes=None, **arrays):
    content = {"cube": CUBE, "measurement": np.ones((8, 14), np.float32), "residual": np.ones((8, 14), np.float32)}
    with h5py.File(path, "w") as file:
        for name, values in (content | arrays).items():
            file[name] = values
        file.attrs.update(attributes or {})
    return path


def shows_or_names(path):
    """What shows a result does so, or raises an InputError with the file in its one line."""
    uses = (
        lambda: make_page(read_report(path)),
        lambda: spectrum_of(read_report(path), Region.at("4,4,3")),
        lambda: gather_cubes(path.with_name("all.h5"), [path, path], overwrite=True),
    )
    said = []
    for use in uses:
        try:
            use()
        except InputError as error:
            said.append(str(error))
    assert all(path.name in text and "\n" not in text for text in said)
    json.dumps(read_record(path))


BROKEN = [({name: value}, {}) for name in NAMES for value in VALUES]
BROKEN += [({}, {name: values}) for name, several in ARRAYS.items() for values in several]


@given(damage=st.sampled_from(BROKEN))
@settings(max_examples=100)
def test_any_attribute_or_array_may_be_damaged(tmp_path, damage):
    attributes, arrays = damage
    shows_or_names(write(tmp_path / "c.h5", attributes, **arrays))


def test_a_damaged_result_is_named_and_left_out_of_the_index(tmp_path, capsys):
    write_cube(tmp_path / "good.h5", CUBE, wavelengths=[450, 500, 550, 600])
    write(tmp_path / "bad.h5", {"choice": '{"frames": [3]}'})
    (tmp_path / "cut.h5").write_bytes((tmp_path / "good.h5").read_bytes()[:900])
    with h5py.File(tmp_path / "calibration.h5", "w") as file:
        file["mask"] = CUBE[0]
    told = []
    page = write_index(tmp_path, told.append).read_text()
    assert "1 result" in page and "bad.h5" in page and "cut.h5" in page and "calibration.h5" not in page
    assert sorted(text.partition(": ")[0] for text in told) == [str(tmp_path / name) for name in ("bad.h5", "cut.h5")]
    for command in (["view", str(tmp_path / "bad.h5"), "--no-browser"], ["compare", str(tmp_path / "bad.h5"), "truth"]):
        assert main(command) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("text", TEXTS)
def test_plans_and_regions_of_any_text(tmp_path, text):
    path = tmp_path / "a.json"
    for content in (text, f'{{"regions": {text}}}', f'{{"vectors": {text}, "noise": {text}, "stages": {text}}}'):
        path.write_text(content)
        for read in (load_plan, read_regions):
            with pytest.raises(InputError):
                read(path)


def test_json_is_parsed_to_a_depth():
    assert parse_json("[" * 32 + "]" * 32) and parse_json('{"a": [1, {"b": "[[[["}]}') == {"a": [1, {"b": "[[[["}]}
    for text in ("[" * 33 + "]" * 33, "[" * 99_999, "{", ""):
        with pytest.raises(ValueError):  # noqa: PT011
            parse_json(text)

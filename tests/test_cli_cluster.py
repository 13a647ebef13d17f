"""Frames computed by other processes: nothing is lost, nothing is done twice, and the cubes are those of threads."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from messages import refuses

from cassi import CASSI
from cassi.cli import many
from cassi.cli.cluster import executor_at
from cassi.cli.main import main
from cassi.files import read_cube, read_measurement, write_measurement
from cassi.optics.measurement import Measurement
from cassi.running.many import SolveWith, find_frames, reconstruct_many
from cassi.self_calibration.found_camera import FoundCamera
from cassi.settings import Settings

SETTINGS = Settings(solver="gap-tv", num_iters=3, camera="as-given")
OPTIONS = ["--solver", "gap-tv", "--iterations", "3", "--camera", "as-given"]
COUNT = 4


@pytest.fixture(scope="module")
def night(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("night")
    generator = torch.Generator().manual_seed(0)
    A = CASSI.from_step(torch.rand(24, 24, generator=generator), 1, 4)
    for k in range(COUNT):
        y = A.forward(torch.rand(4, 24, 24, generator=generator))
        write_measurement(folder / f"frame{k}.h5", Measurement(y.numpy(), A.mask.numpy(), A.shifts))
    return folder


@pytest.fixture(scope="module")
def cubes(night, tmp_path_factory) -> dict[str, np.ndarray]:
    """Of threads."""
    folder = tmp_path_factory.mktemp("threads")
    reconstruct_many(find_frames(night), folder, solve=SolveWith(SETTINGS))
    return {path.name: read_cube(path)[0] for path in folder.glob("*.h5")}


def assert_same(folder: Path, cubes: dict[str, np.ndarray]) -> None:
    assert {path.name for path in folder.glob("*.h5")} == set(cubes)
    for name, cube in cubes.items():
        np.testing.assert_allclose(read_cube(folder / name)[0], cube, rtol=1e-5, atol=1e-6)


@dataclass(frozen=True)
class ReadOrDie:
    """Reads a measurement; the first process that reads frame 1 is ended by it, as by a machine that fails."""

    folder: str  # where it leaves a mark

    def __call__(self, path: str) -> Measurement:
        mark = Path(self.folder) / "died"
        if path.endswith("frame1.h5") and not mark.exists():
            mark.touch()
            os._exit(1)
        return read_measurement(path)


@pytest.mark.slow
def test_processes(night, cubes, tmp_path):
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        report = reconstruct_many(find_frames(night), tmp_path, solve=SolveWith(SETTINGS), executor=executor)
    assert (report.computed, report.found, dict(report.failed)) == (COUNT, 0, {})
    assert_same(tmp_path, cubes)


def test_a_worker_that_dies_loses_nothing(night, cubes, tmp_path):
    """Its frame goes to another; a second run finds all of them."""
    pytest.importorskip("distributed")
    read, informed = ReadOrDie(str(tmp_path)), []
    with executor_at("local:1", informed.append) as executor:
        report = reconstruct_many(
            find_frames(night), tmp_path / "cubes", read=read, solve=SolveWith(SETTINGS), executor=executor
        )
    assert (tmp_path / "died").exists() and (report.computed, dict(report.failed)) == (COUNT, {})
    assert informed[0].startswith("1 workers, dashboard http")
    assert_same(tmp_path / "cubes", cubes)
    again = reconstruct_many(find_frames(night), tmp_path / "cubes", read=read, solve=SolveWith(SETTINGS))
    assert (again.computed, again.found) == (0, COUNT)


@pytest.mark.slow
def test_the_command(night, cubes, tmp_path, capsys):
    pytest.importorskip("distributed")
    output = tmp_path / "cubes"
    assert main(["reconstruct", str(night), "--output", str(output), "--cluster", "local:1", *OPTIONS]) == 0
    assert "1 workers, dashboard" in capsys.readouterr().out
    assert_same(output, cubes)
    lines = [json.loads(line) for line in (output / "index.jsonl").read_text().splitlines()]
    assert [line["method"] for line in lines] == ["gap-tv"] * COUNT


NO_SCHEDULER = {
    "text": "hello", "empty": "", "list": "[1]", "without": '{"id": "s"}', "number": '{"address": 5}',
    "deep": "[" * 9**6,
}  # fmt: skip


@pytest.mark.parametrize(
    "address", ["local:many", "local:0", "local:-3", "local:1.5", "local:4:4", "local:99999", "nowhere"]
)
def test_what_is_no_cluster(address):
    pytest.importorskip("distributed")
    with refuses(), executor_at(address, print):
        pass


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10])
def test_a_server_of_another_kind_is_no_scheduler(monkeypatch, answer):
    """One that is silent, and one that answers something else."""
    pytest.importorskip("distributed")
    monkeypatch.setattr("cassi.cli.cluster.MAX_WAIT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted = []

        def serve():
            with contextlib.suppress(OSError):  # the test is over
                while True:
                    accepted.append(server.accept()[0])
                    accepted[-1].sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with refuses(hide=r"tcp://[^ ]*|Unable to allocate.*uint8"), executor_at(address, print):
            pass
        for one in accepted:
            one.close()


@pytest.mark.parametrize("name", NO_SCHEDULER)
def test_a_file_that_is_none_of_a_scheduler(tmp_path, name):
    pytest.importorskip("distributed")
    (tmp_path / name).write_text(NO_SCHEDULER[name])
    with refuses(), executor_at(str(tmp_path / name), print):
        pass


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM] if os.name != "nt" else [])
def test_processes_of_this_machine_listen_to_it_alone_and_end_without_a_traceback(night, tmp_path, number):
    """The signal goes to all of them, as from a keyboard."""
    pytest.importorskip("distributed")
    program = """if True:
        import sys, time
        from cassi.cli.main import program
        from cassi.cli.cluster import executor_at
        def entry():
            with executor_at("local:1", print) as executor:
                executor.submit(abs, -1).result()
                print(executor._client.scheduler.address, flush=True)
                list(executor.map(time.sleep, [60] * 9))
        program(entry)"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=-1, stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:
        said = [process.stdout.readline() for _ in range(2)]
        listening = set()
        for one in (mother := psutil.Process(process.pid), *mother.children(recursive=True)):
            listening |= {c.laddr.ip for c in one.net_connections() if c.status == psutil.CONN_LISTEN}
        os.killpg(process.pid, number)
        rest = process.stdout.read()
    assert "1 workers, dashboard http" in said[0] and said[1].startswith("tls://127.0.0.1:")
    assert listening == {"127.0.0.1"}
    assert process.returncode == {signal.SIGINT: 130}.get(number, 128 + number) and "Traceback" not in rest, rest


def test_one_plan_for_a_folder(night, tmp_path, capsys, monkeypatch):
    """All follow the plan of the first; a run that was interrupted goes on with the plan that it left."""
    plan, output = tmp_path / "plan.json", tmp_path / "cubes"
    command = ["reconstruct", str(night), "--output", str(output), "--camera", "as-given", "--quiet"]
    assert main([*command, "--prior", "tv", "--save-plan", str(plan)]) == 0
    bases = [json.loads(read_attribute(path, "choice"))["plan"]["vectors"] for path in sorted(output.glob("*.h5"))]
    assert bases == [json.loads(plan.read_text())["vectors"]] * COUNT
    (output / "frame2_cube.h5").unlink()
    before = plan.read_bytes()
    assert main([*command, "--save-plan", str(plan)]) == 0 and plan.read_bytes() == before
    assert main([*command[:-1], "--plan", str(plan)]) == 0, "the same fingerprints"
    said = capsys.readouterr().out
    assert "0 snapshots" in said and "  the plan plan.json is followed\n" in said
    assert main(["reconstruct", str(night / "frame0.h5"), "--plan", str(night / "frame0.h5")]) == 2
    assert "expected a plan" in capsys.readouterr().err
    searched = []
    monkeypatch.setattr(many, "find_with_settings", lambda some, settings, report: searched.append(settings) or given)
    given = FoundCamera.as_given(read_measurement(night / "frame0.h5"))
    assert main([*command[:2], "--output", str(tmp_path / "found"), "--quiet", "--save-plan", str(plan)]) == 0
    assert main([*command[:2], "--output", str(tmp_path / "none"), "--weights", "none.safetensors"]) == 2
    assert [settings.plan for settings in searched] == [str(plan)], "the camera, too, with the weights of the plan"


def read_attribute(path: Path, name: str) -> str:
    import h5py

    with h5py.File(path) as file:
        return str(file.attrs[name])

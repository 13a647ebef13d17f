"""The viewer: what its server answers, to whom, and what a real browser shows of it."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from chromium import Browser, browser  # noqa: F401  (a fixture)

from cassi.errors import InputError
from cassi.files import write_cube
from cassi.looking.report_data import read_report
from cassi.looking.server import address_of, make_server

BANDS, HEIGHT, WIDTH = 4, 300, 1100  # wider than what a picture shows: every second pixel of a band is sent
ROOT = Path(__file__).resolve().parents[1]


def cubes() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    cube = generator.normal(size=(2, BANDS, HEIGHT, WIDTH)).astype(np.float32)
    cube[1, 2, 5, 7] = np.nan
    return cube, np.abs(cube)


@pytest.fixture(scope="module")
def result_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cube, uncertainty = cubes()
    path = tmp_path_factory.mktemp("result") / "stack.h5"
    return write_cube(
        path,
        cube,
        wavelengths=[450, 500, 550, 600],
        datasets={"uncertainty": uncertainty},
        attributes={"unit": "counts"},
    )


@pytest.fixture(scope="module")
def server(result_file: Path) -> Iterator[ThreadingHTTPServer]:
    server = make_server(read_report(result_file, frame=1))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(
    server: ThreadingHTTPServer, path: str, host: str | None = None, method: str = "GET"
) -> tuple[int, bytes, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        reply = connection.getresponse()
        return reply.status, reply.read(), dict(reply.headers)
    finally:
        connection.close()


def test_bands_and_spectra_are_those_of_the_file(server: ThreadingHTTPServer) -> None:
    cube, uncertainty = (stack[1] for stack in cubes())
    status, body, headers = ask(server, "/band?band=3")
    assert (status, headers["Content-Type"]) == (200, "application/octet-stream")
    np.testing.assert_array_equal(np.frombuffer(body, "<f4").reshape(150, 550), cube[3, ::2, ::2])
    status, body, headers = ask(server, "/spectrum?rows=3:9&columns=1090:1100")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    found = json.loads(body)
    np.testing.assert_allclose(found["cube"], cube[:, 3:9, 1090:1100].mean(axis=(1, 2)), rtol=1e-5)
    np.testing.assert_allclose(found["uncertainty"], uncertainty[:, 3:9, 1090:1100].mean(axis=(1, 2)), rtol=1e-5)
    assert found["truth"] is None
    assert json.loads(ask(server, "/spectrum?rows=5:6&columns=7:8")[1])["cube"][2] is None  # NaN is no JSON


def test_the_page_is_closed_to_others(server: ThreadingHTTPServer) -> None:
    status, body, headers = ask(server, "/")
    assert status == 200 and body.startswith(b"<!doctype html>")
    assert len(body) < 1e6  # the cube stays in the file
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address_of(server))
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/../../etc/passwd", 404, "no such address"),
        ("//etc/passwd", 404, "no such address"),
        ("/stack.h5", 404, "no such address"),
        ("/band", 400, "band: expected a whole number from 0 to 3"),
        ("/band?band=4", 400, "from 0 to 3"),
        ("/band?band=%D9%A3", 400, "from 0 to 3"),
        ("/band?band=99999999999999999999", 400, "from 0 to 3"),
        ("/spectrum?rows=0:1", 400, "columns: expected a whole number"),
        ("/spectrum?rows=5:5&columns=0:1", 400, "rows: expected first:end"),
        ("/spectrum?rows=0:301&columns=0:1", 400, "rows: expected a whole number from 0 to 300"),
    ],
)
def test_nothing_else_is_answered(server: ThreadingHTTPServer, path: str, status: int, told: str) -> None:
    got, body, headers = ask(server, path)
    assert (got, headers["Content-Type"]) == (status, "text/plain; charset=utf-8")
    assert told in body.decode()
    assert "root:" not in body.decode()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[::1"])
def test_a_foreign_name_for_this_machine_is_refused(server: ThreadingHTTPServer, host: str) -> None:
    for path in ("/", "/band?band=0"):
        status, body, _ = ask(server, path, host=host)
        assert status == 421 and body == b"this server has another name"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:80"])
def test_its_own_names_are_known(server: ThreadingHTTPServer, host: str) -> None:
    assert ask(server, "/band?band=0", host=host)[0] == 200


def test_nothing_can_be_sent_to_it(server: ThreadingHTTPServer) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, "/", method=method)[0] == 501


def test_an_address_that_cannot_be_had(server: ThreadingHTTPServer, result_file: Path) -> None:
    port = server.server_address[1]
    with pytest.raises(InputError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*choose another --port"):
        make_server(read_report(result_file), port=port)
    with pytest.raises(InputError, match="cannot listen on"):
        make_server(read_report(result_file), port=70000)


def test_the_browser_shows_what_the_server_reads(server: ThreadingHTTPServer, browser: Browser) -> None:  # noqa: F811
    from selenium.webdriver import ActionChains, Keys

    cube, uncertainty = (stack[1] for stack in cubes())
    address = address_of(server)
    browser.open(address)
    browser.run("document.getElementById('clear').click()")
    element = browser.find("#plot-band")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", element)
    column = 825  # a picture this wide has less than a pixel of the screen for one of its own
    ActionChains(browser.driver, duration=50).move_to_element_with_offset(
        element, ((column + 0.5) / WIDTH - 0.5) * element.rect["width"], 0
    ).click().perform()
    browser.wait("document.querySelectorAll('#list li').length === 1")
    row, column = map(int, re.fullmatch(r"row (\d+), column (\d+)", browser.text("#list .place")).groups())
    assert abs(row - 150) <= 3 and abs(column - 825) <= 3
    value, spread = map(float, browser.text("#list .value").split(", spread "))
    np.testing.assert_allclose((value, spread), (cube[2, row, column], uncertainty[2, row, column]), rtol=6e-3)
    browser.find("#band").send_keys(Keys.ARROW_RIGHT)
    browser.wait("document.getElementById('plot-band').dataset.band === '3'")
    assert browser.text("#band-name") == "600 nm, 4 of 4"
    assert [asked for asked in browser.requests() if not asked.startswith((address, "blob:", "data:"))] == []
    assert browser.complaints() == []


def test_the_script_prints_an_address_that_answers(result_file: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "view.py"), str(result_file), "--no-browser", "--frame", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            port = int(re.match(r"http://127\.0\.0\.1:(\d+)/ ", line).group(1))
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/band?band=0")
            assert connection.getresponse().status == 200
            connection.close()
        finally:
            process.terminate()

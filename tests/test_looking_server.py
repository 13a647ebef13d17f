"""The viewer: what its server answers, to whom, and what a real browser shows of a large frame."""

import http.client
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
from messages import refused, refuses

from cassi.files import write_cube
from cassi.looking import report_page
from cassi.looking.report_data import read_report
from cassi.looking.report_page import address_of, make_server

BANDS, HEIGHT, WIDTH = 4, 60, 220
ROOT = Path(__file__).resolve().parents[1]


def cubes() -> tuple[np.ndarray, np.ndarray]:
    cube = np.random.default_rng(3).normal(size=(2, BANDS, HEIGHT, WIDTH)).astype(np.float32)
    return cube, np.abs(cube)


@pytest.fixture(scope="module")
def result_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cube, uncertainty = cubes()
    path = tmp_path_factory.mktemp("result") / "stack.h5"
    nm = [450, 500, 550, 600]
    return write_cube(path, cube, wavelengths=nm, datasets={"uncertainty": uncertainty}, attributes={"unit": "counts"})


@pytest.fixture(scope="module")
def server(result_file: Path) -> Iterator[ThreadingHTTPServer]:
    """Of a page that holds every second pixel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_page, "MAX_VALUES", 2 * BANDS * HEIGHT * WIDTH // 3)
        server = make_server(read_report(result_file, frame=1))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(port: int, path: str, host: str | None = None, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def test_the_page_is_all_that_is_answered(server: ThreadingHTTPServer) -> None:
    port = server.server_address[1]
    status, body = ask(port, "/")
    assert status == 200 and body.startswith(b"<!doctype html>")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address_of(server))
    for path in ("/../../etc/passwd", "//etc/passwd", "/stack.h5"):
        status, body = ask(port, path)
        assert status == 404 and b"root:" not in body
    for method in ("POST", "PUT", "DELETE"):
        assert ask(port, "/", method=method)[0] == 501


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[::1"])
def test_a_foreign_name_for_this_machine_is_refused(server: ThreadingHTTPServer, host: str) -> None:
    assert ask(server.server_address[1], "/", host=host)[0] == 421
    assert ask(server.server_address[1], "/", host="localhost:1234")[0] == 200


def test_an_address_that_cannot_be_had(server: ThreadingHTTPServer, result_file: Path) -> None:
    port = server.server_address[1]
    with refuses(hide=r"port \d+"):
        make_server(read_report(result_file), port=port)
    refused(make_server, read_report(result_file), port=70000)


def test_the_browser_shows_every_second_pixel(server: ThreadingHTTPServer, browser: Browser) -> None:  # noqa: F811
    cube, uncertainty = (stack[1] for stack in cubes())
    address = address_of(server)
    browser.open(address)
    browser.run("document.getElementById('clear').click()")
    assert "one of every 2 x 2 pixels" in browser.text("#spectral")
    element = browser.find("#plot-band")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", element)
    place = (165.5 / WIDTH - 0.5) * element.rect["width"], 0
    browser.actions().move_to_element_with_offset(element, *place).click().perform()
    browser.wait("document.querySelectorAll('#list li').length === 1")
    row, column = map(int, re.findall(r"\d+", browser.run("return document.querySelector('#list .place').value")))
    assert abs(row - 30) <= 2 and abs(column - 165) <= 2 and row % 2 == column % 2 == 0
    value, sigma = map(float, browser.text("#list .value").split(" ± "))
    np.testing.assert_allclose((value, sigma), (cube[2, row, column], uncertainty[2, row, column]), atol=0.02)
    browser.find("#band").send_keys(browser.keys.ARROW_RIGHT)
    browser.wait("document.getElementById('plot-band').dataset.band === '3'")
    assert browser.text("#band-name") == "600 nm, 4 of 4"
    assert [asked for asked in browser.requests() if not asked.startswith((address, "blob:", "data:"))] == []
    assert browser.complaints() == []


def test_the_script_prints_an_address_that_answers(result_file: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "view.py"), str(result_file), "--no-browser", "--frame", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert ask(int(re.match(r"http://127\.0\.0\.1:(\d+)/ ", process.stdout.readline()).group(1)), "/")[0] == 200
        finally:
            process.terminate()

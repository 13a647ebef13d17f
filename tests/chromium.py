"""A real Chromium for the tests of pages; `browser` skips, and says why, where there is none."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """What the tests do with a page: open it, ask it, look at it, and hear what it complained about or asked for."""

    def __init__(self, driver, downloads: Path) -> None:
        self.driver, self.downloads = driver, downloads

    def open(self, address: str) -> None:
        self.requests()  # what came before does not count
        self.complaints()
        self.driver.get(address)
        self.wait("document.documentElement.dataset.ready === 'yes'")

    def run(self, script: str, *args: object) -> object:
        return self.driver.execute_script(script, *args)

    def wait(self, condition: str, seconds: float = 15) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(
            lambda driver: driver.execute_script(f"return {condition}"), f"never: {condition}"
        )

    def find(self, selector: str):
        return self.driver.find_element("css selector", selector)

    def actions(self, duration: int = 50):
        """What a mouse does, each move of so many milliseconds."""
        from selenium.webdriver import ActionChains

        return ActionChains(self.driver, duration=duration)

    @property
    def keys(self):
        from selenium.webdriver import Keys

        return Keys

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def complaints(self) -> list[str]:
        """Errors on the console since the last call: exceptions, failed loads, breaches of the content policy."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("chrome:", "chrome-untrusted:"))]  # its own start page


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium from the system, without a window."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    chromedriver = shutil.which("chromedriver")
    if program is None or chromedriver is None:
        pytest.skip("no Chromium with its driver here: apt-get install chromium chromium-driver")
    downloads = tmp_path_factory.mktemp("downloads")
    options = selenium.ChromeOptions()
    options.binary_location = program
    for flag in (
        "headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "window-size=1400,1000",
        f"user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(chromedriver))
    try:
        yield Browser(driver, downloads)
    finally:
        driver.quit()

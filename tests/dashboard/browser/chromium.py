"""A real Chromium without a window, and what tests ask of a page in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

pytest.importorskip("selenium", reason="selenium is not installed: make check installs it")

from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

__all__ = ["PAGE_S", "Keys", "Page", "chromium"]
PAGE_S = 30.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1600",
)


class Page:
    """The dashboard of one master, in one tab."""

    def __init__(self, browser: Chrome) -> None:
        self.browser = browser

    def open(self, http: str) -> None:
        self.browser.get(f"http://{http}/")
        wait_until(lambda: self.text("#link") == "live", PAGE_S, f"the page of {http} is live")

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Empty where there is no such element, or it is being replaced."""
        try:
            return self.one(selector).text
        except (NoSuchElementException, StaleElementReferenceException):
            return ""

    def until(self, selector: str, part: str) -> str:
        """The text of the element, once that has this part."""

        def found() -> str:
            said = self.text(selector)
            return said if part in said else ""

        return wait_until(found, PAGE_S, f"{selector} says {part!r}; it says {self.text(selector)!r}")

    def run(self, script: str, *given: object) -> Any:
        return self.browser.execute_script(script, *given)

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def resize(self, width: int, height: int = 1600) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def faults(self) -> list[str]:
        """The page's errors since the last look: of the script, the policy and of what was not loaded."""
        return [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]

    def serious(self, part: str = "html", *rules: str) -> list[str]:
        """Findings of axe-core that keep people out; by these rules only, if any are named."""
        if not self.run("return !!window.axe"):
            self.run((files("axe_core_python") / "axe.min.js").read_text())
        options: dict[str, object] = {"resultTypes": ["violations"]}
        if rules:
            options["runOnly"] = list(rules)
        found = self.browser.execute_async_script(
            "const [part, options, done] = arguments;"
            "axe.run(part, options).then((all) => done(all.violations), (error) => done(String(error)))",
            part,
            options,
        )
        assert isinstance(found, list), found
        return [
            f"{one['id']}: {node['html']}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("chromium is not installed: make check installs it")
    options = ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = Chrome(options, Service(driver))
    try:
        browser.set_script_timeout(PAGE_S)
        yield Page(browser)
    finally:
        browser.quit()

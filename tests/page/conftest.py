"""The page in a real browser: a recording that looks like a real one, served by the command that people use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.page.fleet import Scale, made

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
"""The distribution's."""
DECISIONS = 3000
WIDE, USUAL, LAPTOP, NARROW, PHONE = (1680, 1050), (1440, 900), (1280, 800), (1024, 700), (390, 844)
STATE_MIN = 1600
"""From so many pixels on the state has a place of its own; else it is a tab."""


class Served(NamedTuple):
    """One recording on show."""

    url: str
    log: Path


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """`contrail replay open` with these words; gives the address that it prints."""
    command = (sys.executable, "-P", "-m", "api.cli", "replay", "open", "--no-browser", "--port", "0", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://"), "it says where it listens"
            yield url
        finally:
            process.terminate()
            assert process.wait(20) == 0


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Three thousand decisions of four replicas on eight workers, one of them killed, settings changed."""
    log = made(tmp_path_factory.mktemp("page") / "run.contrail", Scale(decisions=DECISIONS))
    with serving("--log", str(log)) as url:
        yield Served(url, log)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    assert Path(CHROMIUM).exists(), f"no browser at {CHROMIUM}: install chromium, or say where it is with CHROMIUM"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def looking(browser: Browser, url: str, size: tuple[int, int] = WIDE, scheme: str = "light") -> Iterator[Page]:
    """A page that says nothing wrong: no error, and nothing that the page's own policy refuses."""
    context: BrowserContext = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    context.set_default_timeout(20_000)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(f"{request.url} {request.failure}"))
    page.goto(url)
    yield page
    context.close()
    assert [each for each in wrong if "ERR_ABORTED" not in each] == []


@pytest.fixture
def page(served: Served, browser: Browser) -> Iterator[Page]:
    """The page over the recording, with all of it read and folded, and a decision at the cursor."""
    with looking(browser, served.url) as page:
        ready(page)
        yield page


def ready(page: Page) -> None:
    """Everything is there."""
    page.get_by_text("all states folded").wait_for()
    page.locator("#decision .costs").wait_for()
    size = page.viewport_size
    if size is not None and size["width"] >= STATE_MIN:
        page.locator("#state table").first.wait_for(state="attached")

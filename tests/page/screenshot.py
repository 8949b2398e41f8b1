"""The screenshots of the documentation: `python -m tests.page.screenshot` writes them to docs/images anew."""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright

from tests.page.conftest import CHROMIUM, DECISIONS, WIDE, looking, ready, serving
from tests.page.fleet import Scale, made
from tests.replay.simulate.planned import arrivals, planned

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


def main() -> None:
    """The page over a simulated deployment, with all of it folded and a decision at the cursor, and the planner's tab
    over a burst."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        _page(browser, Path(folder))
        _planner(browser, Path(folder))
        browser.close()


def _page(browser: Browser, folder: Path) -> None:
    log = made(folder / "run.contrail", Scale(decisions=DECISIONS))
    with serving("--log", str(log)) as url, looking(browser, url, WIDE) as page:
        ready(page)
        page.screenshot(path=IMAGES / "page.png")


def _planner(browser: Browser, folder: Path) -> None:
    log = folder / "planned.contrail"
    planned(arrivals((60, 2), (60, 16), (120, 6)), archive=log)
    with serving("--log", str(log)) as url, looking(browser, url, WIDE) as page:
        ready(page)
        page.locator("#tab-planner").click()
        chart = page.locator("#planner .planner")
        size = chart.bounding_box()
        assert size is not None
        chart.click(position={"x": size["width"] * 0.36, "y": size["height"] / 2})
        expect(page.locator("#planner-card")).to_contain_text("Made again from the log")
        page.locator("#planner").screenshot(path=IMAGES / "planner.png")


if __name__ == "__main__":
    main()

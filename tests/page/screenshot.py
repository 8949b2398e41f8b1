"""The screenshot of the documentation: `python -m tests.page.screenshot` writes docs/images/page.png anew."""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.page.conftest import CHROMIUM, DECISIONS, WIDE, looking, ready, serving
from tests.page.fleet import Scale, made

IMAGE = Path(__file__).resolve().parents[2] / "docs" / "images" / "page.png"


def main() -> None:
    """The page over a simulated deployment, with all of it folded and a decision at the cursor."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        log = made(Path(folder) / "run.contrail", Scale(decisions=DECISIONS))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with serving("--log", str(log)) as url, looking(browser, url, WIDE) as page:
            ready(page)
            page.screenshot(path=IMAGE)
        browser.close()


if __name__ == "__main__":
    main()

"""page: the debug page over a long log, in headless Chromium: the timeline, the fold behind it, and jumps after that.

The log is made first (tests/page/fleet.py): four replicas, eight workers (or --workers), one of them killed, settings
changed. Until the timeline and all states are there counts from the navigation of a browser that runs already; the
third figure, the whole timeline once more, from the start of the command. A jump is what a person waits for: from the
click into the timeline to the state of the new moment on the screen.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median

from playwright.sync_api import Page, sync_playwright

from bench.figures import Figure, main
from tests.page.fleet import Scale, made

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
DECISIONS = 100_000
WORKERS = 8
REQUESTS_PER_S = 55 / 8
"""Of each worker: queues form, and empty again."""
JUMPS = 100
PAUSE_MS = 300
"""Between two jumps, as a person makes them: what is told of the one before in full is there by then."""
WAIT_MS = 900_000
WATCH_JUMP = """() => {
  const state = document.getElementById("state");
  let clickedMs = 0, asked = false;
  window.jumped = new Promise((resolve) => {
    const seen = new MutationObserver(() => {
      asked ||= state.classList.contains("stale");
      if (!asked || state.classList.contains("stale")) return;
      seen.disconnect();
      requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - clickedMs)));
    });
    document.addEventListener("pointerdown", () => {
      clickedMs = performance.now();
      seen.observe(state, { attributes: true });
      setTimeout(() => asked || resolve(null), 500); // the same decision again: nothing is asked
    }, { once: true, capture: true });
  });
}"""
"""By the page's own clock, until the frame with the state is drawn."""


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """All of it, one after the other, on one page."""
    decisions = 20_000 if options.quick else DECISIONS
    with tempfile.TemporaryDirectory(prefix="contrail-bench-") as folder:
        log = options.log or made(
            Path(folder) / "long.contrail",
            Scale(decisions=decisions, workers=options.workers, requests_per_s=REQUESTS_PER_S * options.workers),
        )
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1680, "height": 1050})
            yield from measure_page(page, log)
            browser.close()


def measure_page(page: Page, log: Path) -> Iterator[Figure]:
    """The page over that log."""
    started_s = time.perf_counter()
    words = ("replay", "open", "--no-browser", "--port", "0", "--log", str(log))
    command = (sys.executable, "-P", "-m", "api.cli", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            opened_s = time.perf_counter()
            page.goto(url)
            page.locator("#list .row").first.wait_for(timeout=WAIT_MS)
            yield Figure("from opening the page to the first decisions drawn", time.perf_counter() - opened_s, "s")
            page.locator("#decision .costs").wait_for(timeout=WAIT_MS)  # asked for once all of the timeline is there
            whole_s = time.perf_counter() - opened_s
            yield Figure("from opening the page to the whole timeline", whole_s, "s", note=count(page))
            yield Figure("the same from the start of the command", time.perf_counter() - started_s, "s")
            page.get_by_text("all states folded").wait_for(timeout=WAIT_MS)
            yield Figure("until all states are folded", time.perf_counter() - opened_s, "s", note=foot(page))
            yield from jumps(page)
            yield from sliders(page)
        finally:
            process.terminate()


def jumps(page: Page) -> Iterator[Figure]:
    """To places anywhere in the log."""
    dice, took_ms = Random(1), list[float]()
    lanes = page.locator("#lanes").bounding_box()
    assert lanes is not None
    for _ in range(JUMPS):
        page.wait_for_timeout(PAUSE_MS)
        page.evaluate(WATCH_JUMP)
        page.mouse.click(lanes["x"] + 150 + dice.random() * (lanes["width"] - 170), lanes["y"] + 60)
        if (jump_ms := page.evaluate("() => window.jumped")) is not None:
            took_ms.append(jump_ms)
    took_ms.sort()
    yield Figure("a jump, from the click to the state on the screen: p50", median(took_ms), "ms")
    yield Figure(f"the same: the slowest of {len(took_ms)}", took_ms[-1], "ms")


def sliders(page: Page) -> Iterator[Figure]:
    """A slider moved, 500 decisions made again."""
    page.keyboard.press("2")
    page.locator("#set-decode_weight").focus()
    took = []
    for _ in range(10):
        started_s = time.perf_counter()
        with page.expect_response("**/debug/api/what-if"):
            page.keyboard.press("ArrowRight")
        took.append(time.perf_counter() - started_s)
        page.wait_for_timeout(200)
    yield Figure("a slider, from the key to 500 decisions made again: p50", median(took) * 1000, "ms")


def count(page: Page) -> str:
    return page.locator("#list-count").inner_text() + " decisions"


def foot(page: Page) -> str:
    return page.locator("#footing").inner_text()


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=WORKERS, metavar="N", help="so many in the log that is made")
    parser.add_argument("--log", type=Path, metavar="FILE", help="an export, instead of one that is made")


if __name__ == "__main__":
    main("page", measure, extend)

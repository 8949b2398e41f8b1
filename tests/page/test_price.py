"""A learned duration of prefills that is out of its range, as the page shows it."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.page.conftest import looking, serving
from tests.replay.priced import WRONG, PricedStage


def test_a_wrong_price_is_named_on_top(browser: Browser, tmp_path: Path) -> None:
    scene = PricedStage()
    for _ in range(20):
        scene.ask(WRONG)
    log = scene.stage.archived(tmp_path / "run.contrail")
    with serving("--log", str(log)) as url, looking(browser, url) as page:
        said = re.compile("^tiny: prefills are taken to last 21.7 times what they take, in the median 173.9 ms")
        expect(page.get_by_text("prefill price")).to_have_attribute("title", said)

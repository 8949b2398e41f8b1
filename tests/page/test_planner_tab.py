"""The planner's decisions on the page: over time, and one of them as a card."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, expect

from tests.actors.planning.fleets_run import BUSY, SHARED, logged_messages, two
from tests.actors.planning.planned_log import NAMESPACE
from tests.page.conftest import Served, looking, ready, serving
from tests.replay.recorded import archived
from tests.replay.simulate.planned import arrivals, planned


def test_the_planner_explains_its_decisions(browser: Browser, tmp_path: Path) -> None:
    """The newest one first; arrow keys and clicks choose another. The card says what `contrail explain scale` says."""
    log = tmp_path / "planned.contrail"
    planned(arrivals((15, 2), (30, 16)), archive=log)
    with serving("--log", str(log)) as url, looking(browser, url) as page:
        ready(page)
        page.locator("#tab-planner").click()
        card, chart = page.locator("#planner-card"), page.locator("#planner .planner")
        expect(card).to_contain_text("Made again from the log, it comes out the same.")
        last = int(chart.get_attribute("aria-valuemax") or 0)
        rows = httpx.get(f"{url.partition('/debug')[0]}/debug/api/planner").json()["rows"]
        assert last == len(rows) - 1 > 5
        where = card.locator("h3 .count")
        expect(where).to_have_text(f"scale:{rows[last]['seq']}")
        assert max(row["ready"] for row in rows) > 1

        chart.press("ArrowLeft")
        expect(where).to_have_text(f"scale:{rows[last - 1]['seq']}")
        size = chart.bounding_box()
        assert size is not None
        chart.click(position={"x": 112, "y": size["height"] / 2})
        expect(where).to_have_text(f"scale:{rows[0]['seq']}")
        assert drawn(page) >= {"43,155,134", "221,159,61", "127,143,196"}, "ready workers, targets and arrivals"


def test_one_of_several_models_is_chosen_in_a_list(browser: Browser, tmp_path: Path) -> None:
    """Rows and card are those of the model."""
    path = tmp_path / "two.contrail"

    async def write() -> None:
        fleets = two(a=replace(SHARED, priority=3), b=SHARED)
        for _ in range(4):
            fleets.period(a=BUSY, b=BUSY)
        log = await logged_messages(fleets)
        await archived(log, NAMESPACE, log.key, path)

    with ThreadPoolExecutor(1) as other:  # the browser has a loop in this thread
        other.submit(asyncio.run, write()).result()
    with serving("--log", str(path)) as url, looking(browser, url) as page:
        page.locator("#tab-planner").click()
        card, models = page.locator("#planner-card"), page.locator("#planner select")
        expect(models).to_have_value("a")
        expect(card).to_contain_text("6 of all fleets; alone")
        expect(card).to_contain_text("Made again from the log, it comes out the same.")
        models.select_option("b")
        expect(card).to_contain_text("1 worker: 6 are sought, and all fleets together have 6 devices")
        assert page.locator("#planner .planner").get_attribute("aria-valuemax") == "3"


def drawn(page: Page) -> set[str]:
    """The colours of the chart's pixels that are whole."""
    found: list[str] = page.evaluate(
        """() => { const it = document.querySelector("#planner canvas"); const found = new Set();
        const data = it.getContext("2d").getImageData(0, 0, it.width, it.height).data;
        for (let at = 0; at < data.length; at += 4) {
          if (data[at + 3] === 255) found.add(data.slice(at, at + 3).join(","));
        }
        return [...found]; }"""
    )
    return set(found)


def test_a_recording_without_a_planner_has_no_such_tab(page: Page, served: Served) -> None:
    """And its address answers with nothing."""
    expect(page.locator("#tab-planner")).to_be_hidden()
    assert httpx.get(f"{served.url.partition('/debug')[0]}/debug/api/planner").json() == {
        "rows": [], "last": 0, "more": False,
    }  # fmt: skip

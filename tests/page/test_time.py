"""The page of a log whose replica decided by estimated time and held requests: milliseconds, terms, and the router."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from core.events import AnswerDelayed, RequestFinished, RequestPrefilled
from core.events.request_stages import RequestStages
from core.events.routing import PROGRESS_VERSION
from core.settings import RoutingSettings
from core.subjects import LOAD
from projections.policy.cost import FIRST_ACTIVE_TIMES, FIRST_ACTIVE_TOKENS, TURNOVER_TIMES
from replay.explain.explain import explain
from replay.explain.explanation import Explanation
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulation import simulate
from tests.fixtures.passes import one_prompt_a_pass
from tests.page.conftest import Served, looking, ready, serving
from tests.projections.facts import joined, load, stored
from tests.replay.simulate.families import ENGINE, families
from tests.replay.staged import ASKED, HASHES, KV, A, Stage

__all__ = ["one_prompt_a_pass"]

WEIGHTS = RoutingSettings().to_mapping()
ROUTER = {"light": "183,166,160", "dark": "117,102,95"}
"""The colour of the time in the router."""


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """More prompts than two workers can compute at once."""
    log = tmp_path_factory.mktemp("timed") / "run.contrail"
    simulate(Options(workers=2, engine=ENGINE), families(120, every_us=5_000), archive=log)
    with serving("--log", str(log)) as url:
        yield Served(url, log)


@pytest.fixture(scope="module")
def held(timed: Served) -> Explanation:
    """The request that was held longest."""
    with Recording.open(timed.log) as recording:
        found = [explain(recording, tried.request) for tried in recording.requests.between() if tried.queued_seq]
    return max(found, key=lambda each: (each.attempts[0].hold and each.attempts[0].hold.held_ms) or 0)


def show(page: Page, found: Explanation) -> None:
    """Its decision is at the cursor, and explained in full."""
    ready(page)
    page.keyboard.press("/")
    page.keyboard.type(found.request)
    page.keyboard.press("Enter")
    expect(page.locator("#decision h3 code")).to_have_text(found.request)
    expect(page.locator("#why")).to_contain_text(found.attempts[0].why)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_time_in_the_router_is_drawn(timed: Served, browser: Browser, held: Explanation, scheme: str) -> None:
    """In a shade of its own in the lanes; how long, and what the worker did meanwhile, among the facts."""
    with looking(browser, timed.url, scheme=scheme) as page:
        show(page, held)
        for _ in range(4):
            page.get_by_role("button", name="Zoom in").click()
        page.wait_for_function(PAINTED, arg=ROUTER[scheme])
        hold = held.attempts[0].hold
        assert hold is not None
        expect(page.locator("#decision .facts")).to_contain_text(f"in the router{hold.held_ms} ms")
        told = page.locator("#held")
        expect(told).to_contain_text(f"{hold.held_ms} ms in the router: its worker computed other prompts")
        for by in hold.by:
            expect(told).to_contain_text(by.request)
        expect(page.locator("#waterfall .measured i.held")).to_have_count(1)


def test_the_course_of_a_request_is_one_bar_to_scale(timed: Served, browser: Browser, held: Explanation) -> None:
    """Its parts are as wide as they took long; the estimate lies below, and the requests beside it can be opened."""
    course, attempt = held.course, held.attempts[0]
    assert course is not None
    with Recording.open(timed.log) as recording:
        (own,) = recording.requests.attempts(held.request)
        end = own.time_ms - own.before_ms + own.duration_ms
        stays = [each for each in recording.requests.between() if each.worker == own.worker and each.at != own.at]
        there = [
            each for each in stays
            if each.time_ms < end and each.time_ms - each.before_ms + each.duration_ms > own.time_ms
        ]  # fmt: skip
    with looking(browser, timed.url) as page:
        show(page, held)
        waterfall = page.locator("#waterfall")
        track = waterfall.locator(".measured .track")
        whole = track.bounding_box()
        boxes = [box for bar in track.locator("i").all() if (box := bar.bounding_box()) is not None]
        assert whole is not None and len(boxes) == len(course.parts)
        last = max(part.to_ms for part in (*course.parts, *course.expected))
        for box, part in zip(boxes, course.parts, strict=True):
            assert box["x"] - whole["x"] == pytest.approx(whole["width"] * part.from_ms / last, abs=1.5)
            assert box["width"] == pytest.approx(whole["width"] * (part.to_ms - part.from_ms) / last, abs=1.5)
        assert waterfall.locator(".ghost i").count() == len(course.expected)
        hold = attempt.hold
        assert hold is not None
        expect(waterfall.locator(".keys").first).to_contain_text(f"{hold.held_ms} ms held for its worker")
        expect(waterfall.locator("h4")).to_have_text(f"Beside it on {attempt.worker_name} {len(there)}")
        others = waterfall.locator(".other .link")
        assert others.count() == min(12, len(there)) > 0
        named = others.all_inner_texts()
        assert set(named) <= {each.request for each in there}
        if len(there) > 12:
            expect(waterfall).to_contain_text(f"and {len(there) - 12} more")
        others.first.click()
        expect(page.locator("#decision h3 code")).to_have_text(named[0])


def test_recorded_stages_are_drawn_from_the_first_byte_to_the_last(browser: Browser, tmp_path: Path) -> None:
    """The bar begins before the router has the request, and ends with its late client; the estimate lies below."""
    stage = Stage()
    stage.say(KV, A, joined("a"), stored(*HASHES[:4]))
    stage.say(LOAD, A, load())
    stage.replica()
    stage.settings(RoutingSettings(policy="time", prefill_us_per_token_m=1_000_000))
    stage.clock.advance(30)
    stage.route("r", ASKED)
    stage.clock.advance(70)
    stage.tell(RequestPrefilled(request="r", attempt=0, cached_tokens=16, ttft_ms=100))
    stages = RequestStages(
        loop=40, body=60, prepare=250, queued=100, held=200, link=20, behind=280, prefill=400, decode=900
    )
    stage.tell(
        RequestFinished(
            request="r", attempt=0, outcome="stop", prompt_tokens=25, output_tokens=9, cached_tokens=16,
            ttft_ms=100, duration_ms=190, v=PROGRESS_VERSION, stages=stages,
        ),
        AnswerDelayed(request="r", written_ms=45, stalled_ms=40, unsent_bytes=900),
    )  # fmt: skip
    log = tmp_path / "run.contrail"
    with stage.recording(log) as recording:
        found = explain(recording, "r")
    with serving("--log", str(log)) as url, looking(browser, url) as page:
        show(page, found)
        waterfall = page.locator("#waterfall")
        assert [bar.get_attribute("class") for bar in waterfall.locator(".measured i").all()] == [
            "earlier", "reading", "tokenizing", "router", "held", "way", "wait", "computed", "decode", "occupied",
        ]  # fmt: skip
        assert [bar.get_attribute("class") for bar in waterfall.locator(".ghost i").all()] == ["computed"]
        expect(waterfall.locator(".measured .track")).to_have_attribute(
            "title",
            "4 ms until it was read, 6 ms reading the body, 25 ms tokenizing, 10 ms queued, 20 ms held for its worker, "
            "2 ms on the way there and back, 28 ms waiting at the engine, 40 ms prefill, 90 ms decode, "
            "45 ms written late",
        )
        expect(waterfall.locator(".keys").first).to_contain_text("40 ms prefill, expected 9 ms")
        assert waterfall.locator(".marks b").first.text_content() == "received"
        assert waterfall.locator(".ticks .track span").first.get_attribute("style") == "left: 0%;"
        if "SHOT" in os.environ:
            waterfall.screenshot(path=os.environ["SHOT"])


def test_a_pause_and_what_a_later_program_tells_are_drawn(timed: Served, browser: Browser) -> None:
    """An answer that goes on elsewhere has a red mark; a part of a kind that the page does not know keeps its name."""
    with looking(browser, timed.url) as page:
        ready(page)
        said = page.evaluate(
            """async () => {
                const { waterfall } = await import("/debug/static/waterfall.js");
                const part = (kind, from_ms, to_ms) => ({ kind, from_ms, to_ms, attempt: 0, worker: "" });
                const course = {
                    parts: [
                        part("read_body", -20, 0), part("prefill", 0, 30), part("decode", 30, 100),
                        part("prefill", 100, 180),
                    ],
                    expected: [], pauses: [part("pause", 100, 180)], ended: false,
                };
                const store = {
                    count: 0, ms: [0], before_ms: [0], ttft_ms: [30], duration_ms: [180], worker: [0],
                    endAt: () => 180, cameAt: () => 0,
                };
                const made = waterfall({ course, decided_after_ms: 0 }, 0, store, { near: false });
                const places = [...made.querySelectorAll(".measured i, .pauses i")].map((bar) => bar.style.left);
                const pause = made.querySelector(".pauses .track").ariaLabel;
                return [made.querySelector(".keys").textContent, places, pause];
            }"""
        )
        assert said[0].startswith("20 ms read body110 ms prefill70 ms decodeunder way when the log ends")
        assert said[1] == ["0%", "10%", "25%", "60%", "60%"]
        assert said[2] == "no output: 80 ms pause"


PAINTED = """colour => {
    const canvas = document.querySelector("#lanes canvas");
    const { data } = canvas.getContext("2d").getImageData(150, 38, canvas.width - 170, canvas.height - 60);
    const [red, green, blue] = colour.split(",").map(Number);
    return data.some((value, at) => at % 4 === 0 && value === red && data[at + 1] === green && data[at + 2] === blue);
}"""


def test_scores_are_drawn_term_by_term(timed: Served, browser: Browser) -> None:
    """Each candidate's bar names the terms of its score; below stands how they are reckoned, by the settings' names."""
    with Recording.open(timed.log) as recording:
        found = [explain(recording, tried.request) for tried in list(recording.requests.between())[20:60]]
    chosen = max(found, key=lambda each: sum(row.timed.held_ms > 0 for row in each.attempts[0].candidates if row.timed))
    attempt = chosen.attempts[0]
    with looking(browser, timed.url) as page:
        show(page, chosen)
        expect(page.locator("#decision > .keys")).to_contain_text("score:")
        bars = page.locator("#decision .costs .stack").all()
        assert len(bars) == len(attempt.candidates)
        for bar, row in zip(bars, attempt.candidates, strict=True):
            assert row.timed is not None
            waits = row.timed.outstanding_ms, row.timed.held_ms
            terms = (row.prefill_cost, *waits, row.decode_cost, row.request_cost, row.turnover_cost)
            assert bar.locator("i").count() == sum(term > 0 for term in terms)
            said = bar.get_attribute("aria-label") or ""
            numbers = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", said)]
            assert sum(numbers) == pytest.approx(row.cost, rel=0.02)
        formula = page.locator("#formula")
        expect(formula).to_contain_text(f"Score = own_weight {WEIGHTS['own_weight']:g} ")
        expect(formula).to_contain_text(re.compile(r"its own prefill \([\d.]+ ms and [\d.]+ µs per token, (as|by) "))
        expect(formula).to_contain_text(f"active_weight {WEIGHTS['active_weight']:g}")
        expect(formula).to_contain_text("prefill of the tokens in active blocks")
        expect(formula).to_contain_text(f"own_request_weight {WEIGHTS['own_request_weight']:g}")


def test_the_price_of_first_tokens_is_named(tmp_path: Path, browser: Browser) -> None:
    """Among talks; not for a decision before them."""
    stage, log = Stage(), tmp_path / "log"
    stage.say(KV, A, joined("a"))
    stage.replica(settings=RoutingSettings())
    stage.route("before", ASKED)
    stage.say(LOAD, A, load(reuse_rate=3000))
    stage.route("among", ASKED)
    stage.archived(log)
    with Recording.open(log) as recording:
        before, among = (explain(recording, request) for request in ("before", "among"))
    times = f"up to {FIRST_ACTIVE_TIMES} times more, by how full of talks the workers are"
    price = f"in active blocks, and {times}, for the first {FIRST_ACTIVE_TOKENS:,} of them + own_request_weight"
    with serving("--log", str(log)) as url:
        for found, text in ((among, price), (before, "in active blocks + own_request_weight")):
            with looking(browser, url) as page:
                show(page, found)
                expect(page.locator("#formula")).to_contain_text(text)


def test_the_price_of_what_a_prompt_pushes_out_is_named(tmp_path: Path, browser: Browser) -> None:
    """Where one worker has more turnover than the other, and the bar has its part; not for a decision before."""
    stage, log = Stage(), tmp_path / "log"
    stage.pair()
    stage.replica(settings=RoutingSettings())
    stage.route("before", ASKED)
    stage.say(LOAD, A, load(turnover=30))
    stage.route("among", ASKED)
    stage.archived(log)
    with Recording.open(log) as recording:
        before, among = (explain(recording, request) for request in ("before", "among"))
    price = re.compile(
        rf"\+ {TURNOVER_TIMES} . its own prefill . how much more of the cache prompts filled of late than elsewhere\."
    )
    with serving("--log", str(log)) as url:
        with looking(browser, url) as page:
            show(page, among)
            expect(page.locator("#formula")).to_contain_text(price)
            expect(page.locator("#decision .costs .stack i.pushed")).to_have_count(1)
        with looking(browser, url) as page:
            show(page, before)
            expect(page.locator("#formula")).to_contain_text("active requests.")
            expect(page.locator("#formula")).not_to_contain_text("filled of late")
            expect(page.locator("#decision .costs .stack i.pushed")).to_have_count(0)


def test_sliders_are_those_of_the_policy(timed: Served, browser: Browser) -> None:
    """Its weights can be moved; those of another policy come with that."""
    with looking(browser, timed.url) as page:
        ready(page)
        page.get_by_role("tab", name="What if").click()
        for label in ("own weight", "own request weight", "active weight"):
            expect(page.get_by_label(label, exact=True)).to_be_visible()
        expect(page.get_by_label("prefill weight", exact=True)).to_be_hidden()
        own = page.get_by_label("own weight", exact=True)
        expect(own).to_have_value(f"{WEIGHTS['own_weight']:g}")
        own.focus()
        page.keyboard.press("Home")
        expect(page.locator("#verdict")).to_contain_text("decisions fall otherwise")
        page.get_by_label("policy").select_option("kv")
        expect(page.get_by_label("prefill weight", exact=True)).to_be_visible()
        expect(page.get_by_label("own request weight", exact=True)).to_be_hidden()
        expect(own).to_be_visible()  # it was moved

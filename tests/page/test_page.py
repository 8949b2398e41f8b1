"""What a person does on the page, with the mouse and with the keyboard, and what it says to that."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from core.ids import StreamName
from core.subjects import ROUTING
from replay.cache.cache_losses import cache_losses
from replay.cache.cache_report import BY_CAUSE, BY_WORKER
from replay.cache.judgement import judge
from replay.recording.recording import Recording
from replay.whatif.scenario import Scenario
from replay.whatif.whatif import what_if
from tests.page.conftest import (
    DECISIONS,
    LAPTOP,
    NARROW,
    PHONE,
    STATE_MIN,
    USUAL,
    WIDE,
    Served,
    looking,
    ready,
    serving,
)
from tests.page.fleet import KEY, Scale, made

DECISION = re.compile(r"#routing:\d+$")


def number(page: Page) -> int:
    """Which decision stands at the cursor, from 1."""
    found = re.search(r"decision ([\d,]+) of", page.locator("#readout").inner_text())
    assert found is not None
    return int(found[1].replace(",", ""))


def chosen_row(page: Page) -> Locator:
    """The row of the decision at the cursor, where all are listed; rows are drawn a frame after it has moved."""
    return page.locator(f'#list .row[aria-selected=true][aria-posinset="{number(page)}"]')


def place(page: Page, across: float, lane: int) -> tuple[float, float]:
    """A point on the lanes: so far across them, in the middle of that lane."""
    box = page.locator("#lanes").bounding_box()
    assert box is not None
    height = (box["height"] - 38) / 8
    return box["x"] + 150 + across * (box["width"] - 160), box["y"] + 38 + (lane + 0.4) * height


def test_a_recording_is_shown(page: Page) -> None:
    """How much there is, who was there, and lanes that are drawn."""
    expect(page.locator("#totals")).to_contain_text(f"{DECISIONS:,} decisions, 8 workers, 4 replicas")
    assert number(page) > DECISIONS - 200
    colours = page.locator("#lanes canvas").first.evaluate(
        """canvas => {
            const { data } = canvas.getContext("2d").getImageData(150, 38, canvas.width - 170, canvas.height - 60);
            const seen = new Set();
            for (let at = 0; at < data.length; at += 4) seen.add(`${data[at]},${data[at + 1]},${data[at + 2]}`);
            return [...seen];
        }"""
    )
    assert {"43,155,134", "221,159,61"} <= set(colours), "cached and computed tokens"


def test_a_click_in_a_lane_chooses_a_request(page: Page) -> None:
    """The decision under the mouse, in that worker's lane; panel, list and address say the same one."""
    expect(page).to_have_url(DECISION)  # the address follows the cursor a quarter of a second later
    before = page.url
    page.mouse.click(*place(page, 0.25, 4))
    row = chosen_row(page)
    expect(row).to_contain_text("decode-4")
    request = row.locator(".id").inner_text()
    expect(page.locator("#decision h3 code")).to_have_text(request)
    expect(page.locator("#summary")).to_contain_text(re.compile("^(First token after|No first token)"))
    expect(page.locator("#decision tr.chosen td").first).to_have_text("● decode-4")
    assert page.locator("#decision .costs tbody tr").count() == 8
    expect(page.locator("#why")).to_contain_text("decode-4")
    expect(page).not_to_have_url(before)
    expect(page).to_have_url(DECISION)
    page.reload()
    expect(page.locator("#decision h3 code")).to_have_text(request)


def test_a_click_in_the_list_chooses_a_request(page: Page) -> None:
    """The row, wherever it is scrolled to."""
    page.locator("#list").evaluate("list => { list.scrollTop = 500 * 21; }")
    expect(page.locator("#list .row").first).to_have_attribute("aria-posinset", "497")
    row = page.locator("#list .row").nth(8)
    request = row.locator(".id").inner_text()
    row.click()
    expect(page.locator("#decision h3 code")).to_have_text(request)
    assert 480 < number(page) < 530


def test_every_column_sorts(page: Page, served: Served) -> None:
    """The largest number first, then the smallest, then the order of the log; arrow keys go by what is seen."""
    with Recording.open(served.log) as recording:
        attempts = [each for each in recording.requests.between() if each.worker]
    largest = sorted(attempts, key=lambda each: (-each.prompt_tokens, each.at))
    head, first = page.locator("#sort-tokens"), page.locator("#list .row[aria-posinset='1'] .id")
    head.click()
    expect(head).to_have_attribute("data-down", "true")
    page.locator("#list").press("Home")
    expect(first).to_have_text(largest[0].request)
    expect(page.locator("#decision h3 code")).to_have_text(largest[0].request)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#decision h3 code")).to_have_text(largest[1].request)
    head.click()
    expect(head).to_have_attribute("data-down", "false")
    page.locator("#list").press("Home")
    smallest = min(attempts, key=lambda each: (each.prompt_tokens, each.at))
    expect(first).to_have_text(smallest.request)
    head.click()
    expect(head).to_have_attribute("aria-pressed", "false")
    page.locator("#list").press("Home")
    expect(first).to_have_text(attempts[0].request)
    page.get_by_label("Which decisions to list").select_option("slow")
    expect(page.locator("#sort-first")).to_have_attribute("data-down", "true")
    page.locator("#list").press("Home")
    slowest = max((each for each in attempts if each.begun_ms < 0), key=lambda each: (each.ttft_ms, -each.at))
    expect(first).to_have_text(slowest.request)


def test_trends_are_of_what_is_shown(page: Page, served: Served) -> None:
    """Of everything, and of a part: as many decisions as there are, and their waits."""
    with Recording.open(served.log) as recording:
        attempts = [each for each in recording.requests.between() if each.worker]
    waits = sorted(each.pause_ms if each.begun_ms >= 0 else each.ttft_ms for each in attempts if each.ttft_ms >= 0)
    trends = page.locator("#trends")
    expect(trends).to_have_attribute("aria-label", re.compile(f"^{len(attempts)} decisions; "))
    p50 = waits[-(-len(waits) // 2) - 1]
    expect(trends).to_have_attribute("aria-label", re.compile(f"p50 {p50} ms, p99 "))
    colours = trends.locator("canvas").evaluate(
        """canvas => {
            const { data } = canvas.getContext("2d").getImageData(150, 0, canvas.width - 160, canvas.height);
            const seen = new Set();
            for (let at = 0; at < data.length; at += 4) seen.add(`${data[at]},${data[at + 1]},${data[at + 2]}`);
            return [...seen];
        }"""
    )
    assert {"43,155,134", "221,159,61", "127,143,196"} <= set(colours), "cached, first tokens and arrivals"
    for _ in range(3):
        page.keyboard.press("+")
    expect(trends).not_to_have_attribute("aria-label", re.compile(f"^{len(attempts)} decisions; "))


def test_what_is_shown_can_be_taken_along(page: Page, served: Served, tmp_path: Path) -> None:
    """As a trace with a slice for each request on its worker, and as a table with a line for each."""
    with Recording.open(served.log) as recording:
        attempts = list(recording.requests.between())
        names = recording.names
        there = Counter(names.worker(each.worker) for each in attempts if each.worker)
    files = {}
    for kind in ("trace", "csv"):
        with page.expect_download() as waiting:
            page.get_by_label("Download what is shown").select_option(kind)
        files[kind] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(files[kind])
    events = json.loads(files["trace"].read_text())["traceEvents"]
    called = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    asked = {each.request for each in attempts}
    slices = [event for event in events if event["name"] in asked and not called[event["pid"]].startswith("router")]
    assert Counter(called[event["pid"]] for event in slices) == there
    with files["csv"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    routed = [each for each in attempts if each.worker]
    assert [(row["request"], int(row["attempt"])) for row in rows] == [(it.request, it.attempt) for it in routed]
    assert [row["duration_ms"] for row in rows] == [str(it.duration_ms) if it.duration_ms >= 0 else "" for it in routed]
    assert {row["at"] for row in rows} == {f"routing:{it.seq}" for it in routed}


def test_scrubbing_moves_the_state(page: Page, served: Served) -> None:
    """A drag over the lanes goes through the decisions, and the state is the log's fold at each of them."""
    page.mouse.move(*place(page, 0.2, 1))
    page.mouse.down()
    seen = []
    for step in range(1, 7):
        page.mouse.move(*place(page, 0.2 + 0.1 * step, 1))
        seen.append(number(page))
    page.mouse.up()
    assert seen == sorted(seen)
    assert seen[-1] - seen[0] > DECISIONS * 0.3
    when = page.locator("#readout b").inner_text()
    expect(page.locator("#state-when")).to_have_text(f"before {when}")
    said = page.locator("#state .fine").last.inner_text()
    cursor = {StreamName(stream): int(seq) for stream, seq in re.findall(r"(kv_0|load|routing):(\d+)", said)}
    with Recording.open(served.log) as recording:
        assert f"{recording.state_at(cursor).digest:016x}" == page.locator("#state").get_attribute("data-digest")


def test_a_slider_changes_a_choice(page: Page, served: Served) -> None:
    """The server decides again; the panel reads the changed choice, and it is the one that the library gives."""
    page.mouse.click(*place(page, 0.5, 2))
    page.get_by_role("tab", name="What if").click()
    slider = page.get_by_label("decode weight", exact=True)
    slider.focus()
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#verdict")).to_contain_text("decisions fall otherwise")
    page.get_by_label("Which decisions to list").select_option("changed")
    page.locator("#list .row").first.click()
    page.get_by_role("tab", name="Decision").click()
    choice = page.locator("#choice")
    expect(choice).to_contain_text("With decode weight 0.66: decode-")
    said = re.search(r": (decode-\d) instead of (decode-\d)", choice.inner_text())
    assert said is not None
    request = page.locator("#decision h3 code").inner_text()
    with Recording.open(served.log) as recording:
        seq = recording.requests.attempts(request)[-1].seq
        (outcome,) = what_if(recording, [Scenario.parse({"decode_weight": 0.66})], *window(page, seq))
        change = next(change for change in outcome.changes if change.request == request)
        assert recording.names.worker(change.new_worker) == said[1]
        assert recording.names.worker(change.recorded_worker) == said[2]


def window(page: Page, seq: int) -> tuple[int, int]:
    """The messages that the page asked about: it says so to the server."""
    with page.expect_request("**/debug/api/what-if") as asked:
        page.get_by_role("tab", name="What if").click()
        page.get_by_label("policy").select_option("least-loaded")
    body = asked.value.post_data_json
    assert body is not None
    start, end = body["from_n"] // 10_000, body["to_n"] // 10_000 + 1
    assert start <= seq < end
    return start, end


def test_everything_can_be_typed(page: Page) -> None:
    """Arrows step, with Shift ten; Home and End; a slash searches; a question mark helps."""
    page.keyboard.press("Home")
    assert number(page) == 1
    for key, expected in (("ArrowRight", 2), ("Shift+ArrowDown", 12), ("ArrowUp", 11), ("Shift+ArrowLeft", 1)):
        page.keyboard.press(key)
        assert number(page) == expected, key
    page.keyboard.press("End")
    assert number(page) == DECISIONS
    request = chosen_row(page).locator(".id").inner_text()
    page.keyboard.press("Home")
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type(request)
    page.keyboard.press("Enter")
    expect(page.locator("#search")).not_to_be_focused()  # it is found; the text below may still be that of the end
    expect(page.locator("#decision h3 code")).to_have_text(request)
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    assert number(page) == DECISIONS, "keys of a dialog are its own"
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("p")
    expect(page.locator("#said")).to_contain_text("uses revision 1: decode_weight 0.06 → 2.5, temperature 0 → 0.15")


def test_the_address_leads_to_its_decision(browser: Browser, served: Served) -> None:
    """When the page is opened, and when another one is typed; one that names none says so."""
    with looking(browser, f"{served.url}#routing:1") as page:
        ready(page)
        expect(page.locator("#said")).to_have_text("no decision stands at routing:1: another one is shown")
        page.keyboard.press("Home")
        expect(page.locator("#readout")).to_contain_text("decision 1 of")
        expect(page).to_have_url(re.compile(r"#routing:[2-9]$"))
        first = page.url.partition("#")[2]
        page.keyboard.press("End")
        expect(page).to_have_url(re.compile(r"#routing:\d{3,}$"))
        page.evaluate("hash => { location.hash = hash; }", first)
        expect(page.locator("#readout")).to_contain_text("decision 1 of")


def test_enter_goes_to_what_stands_in_the_box(page: Page) -> None:
    """Not to a hit for what stood there before."""
    page.keyboard.press("Home")
    request = chosen_row(page).locator(".id").inner_text()
    page.keyboard.press("End")
    box = page.locator("#search")
    box.fill("req-")
    expect(page.locator("#found li").nth(1)).to_be_visible()
    box.fill(request)
    box.press("Enter")
    expect(page.locator("#decision h3 code")).to_have_text(request)


def test_times_are_rounded_before_they_are_split(page: Page) -> None:
    """No minute has sixty seconds, no second a thousand milliseconds."""
    said = page.evaluate(
        """async () => {
            const { duration } = await import("/debug/static/format.js");
            return [999.7, 9996, 119_999, 179_700, 7_199_800].map(duration);
        }"""
    )
    assert said == ["1.00 s", "10.0 s", "2 min 00 s", "3 min 00 s", "2 h 00 min"]


def test_tab_goes_through_the_page(page: Page) -> None:
    """From the head over the timeline and the list to the panels, each place once, and every one can be seen."""
    seen = []
    for _ in range(45):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        seen.append(
            focused.get_attribute("id") or focused.get_attribute("class") or focused.get_attribute("aria-label")
        )
        style = "element => [getComputedStyle(element).outlineStyle, getComputedStyle(element).outlineWidth]"
        assert focused.evaluate(style) == ["solid", "2px"], seen
    order = ["skip", "search", "help-button", "zone", "zoom-out", "zoom-in", "zoom-fit", "download"]
    order += ["lanes", "split", "filter", *["List only the worker", "List only the outcome"]]
    order += [f"sort-{by}" for by in ("time", "request", "worker", "tokens", "cached", "first", "took")]
    order += ["list"]
    assert seen[: len(order)] == order
    assert seen[len(order) : len(order) + 2] == ["tab-decision", "decision"]
    assert "state-of" in seen


def test_the_panels_answer(page: Page) -> None:
    """Replicas agree, events are listed and lead to their moment, the state is told as a replica saw it."""
    page.keyboard.press("3")
    expect(page.locator("#replicas .verdict")).to_contain_text("All 4 had equal digests")
    assert page.locator("#replicas table").count() == 5
    page.keyboard.press("4")
    lost = page.locator("#events .event", has_text="lost: silent for 10 s")
    when = lost.locator(".time").inner_text()
    lost.click()
    expect(page.locator("#events [aria-current] .time")).to_have_text(when)
    assert page.locator("#readout b").inner_text() >= when
    page.keyboard.press("1")
    page.get_by_label("Whose view of the state").select_option("as frontend-2 saw it")
    expect(page.locator("#state > .fine").first).to_contain_text("frontend-2, at its decision routing:")
    page.get_by_label("Which decisions to list").select_option("failed")
    expect(page.locator("#list .row").first).to_have_class(re.compile("failed"))


SIZES = [WIDE, USUAL, LAPTOP, NARROW, PHONE]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_fits_and_can_be_read(
    served: Served, browser: Browser, size: tuple[int, int], scheme: str, tmp_path: Path
) -> None:
    """In all sizes and colours: nothing lies outside of the window, and every text stands out from its ground."""
    with looking(browser, served.url, size, scheme) as page:
        ready(page)
        page.screenshot(path=tmp_path / f"page-{scheme}-{size[0]}.png")
        for text, ground, ratio in contrasts(page):
            assert ratio >= 4.5, f"{text} on {ground}"
        assert page.evaluate("() => document.documentElement.scrollWidth") <= size[0]
        for panel in page.locator(".panel, .timeline, .edge").all():
            box = panel.bounding_box()
            if box is not None:
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= size[0] + 1
                assert size == PHONE or box["y"] + box["height"] <= size[1] + 1, "only a phone scrolls"
        if size[0] < STATE_MIN:
            expect(page.locator("#state")).to_be_hidden()
            page.get_by_role("tab", name="State").click()
            expect(page.locator("#state")).to_be_visible()
            expect(page.locator("#state table").first).to_be_visible()


@pytest.mark.parametrize("size", SIZES)
def test_no_text_is_cut(served: Served, browser: Browser, size: tuple[int, int]) -> None:
    """Ids and numbers of the list are there in full, beside each other; so are all columns of the candidates."""
    with looking(browser, served.url, size) as page:
        ready(page)
        rows = [each.locator("span").all() for each in page.locator("#list .row").all()[:5]]
        assert rows
        for row in rows:
            edges = [box for cell in row if (box := cell.bounding_box()) is not None]
            assert all(one["x"] + one["width"] <= two["x"] + 1 for one, two in pairwise(edges))
            for cell in row:
                assert cell.evaluate("cell => cell.scrollWidth <= Math.ceil(cell.getBoundingClientRect().width)")
        assert re.fullmatch("req-[0-9a-f]{16}", page.locator("#list .row .id").first.inner_text())
        panel, table = page.locator("#decision"), page.locator("#decision .costs")
        fits = "element => element.scrollWidth <= element.clientWidth"
        assert panel.evaluate(fits)
        assert size in {PHONE, NARROW} or table.evaluate(fits), "there the table scrolls within itself"


def test_a_phone_shows_all_of_it(served: Served, browser: Browser) -> None:
    """One part below the other: the decision has the whole width, and a row chooses it."""
    with looking(browser, served.url, PHONE) as page:
        ready(page)
        page.keyboard.press("Home")
        expect(page.locator("#list .row").first).to_have_attribute("aria-posinset", "1")
        request = page.locator("#list .row .id").nth(6).inner_text()
        page.locator("#list .row", has=page.get_by_text(request, exact=True)).click()
        expect(page.locator("#decision h3 code")).to_have_text(request)
        page.locator("#waterfall .measured").wait_for()
        box = page.locator("#why").bounding_box()
        assert box is not None and box["width"] > 350
        width = "() => document.querySelector('#waterfall .measured .track').getBoundingClientRect().width"
        assert page.evaluate(width) > 200
        page.get_by_role("tab", name="What if").click()
        expect(page.get_by_label("decode weight", exact=True)).to_be_visible()


def contrasts(page: Page) -> list[tuple[str, str, float]]:
    """Each colour of text against each ground, as WCAG reckons it."""
    found: list[tuple[str, str, float]] = page.evaluate(
        """() => {
            const style = getComputedStyle(document.documentElement);
            const light = name => {
                const hex = style.getPropertyValue(`--${name}`).trim().slice(1).match(/../g);
                const linear = each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4;
                const [red, green, blue] = hex.map(each => linear(parseInt(each, 16) / 255));
                return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
            };
            const ratio = (one, two) => (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
            const grounds = ["ground", "raised", "surface", "accent-soft"];
            return ["text", "muted", "accent", "bad", "good", "changed", "wait-text"].flatMap(text => grounds
                .map(ground => [text, ground, ratio(light(text), light(ground))]));
        }"""
    )
    return found


def test_a_drag_over_the_charts_zooms(page: Page) -> None:
    """The part that was framed is shown; a click goes to the decision there."""
    box = page.locator("#trends").bounding_box()
    assert box is not None
    left, width = box["x"] + 150, box["width"] - 160
    whole = page.evaluate("() => document.querySelector('#readout').textContent")
    page.mouse.move(left + width * 0.25, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(left + width * 0.5, box["y"] + 20)
    expect(page.locator("#brush")).to_be_visible()
    page.mouse.up()
    expect(page.locator("#brush")).to_be_hidden()

    def seconds(text: str) -> float:
        found = re.search(r"· ([\d.]+) s shown", text)
        assert found is not None, text
        return float(found[1])

    assert seconds(page.locator("#readout").inner_text()) == pytest.approx(seconds(whole) / 4, rel=0.05)
    page.mouse.click(left + width * 0.5, box["y"] + 20)
    expect(page.locator("#readout")).to_contain_text("decision 1,")


def test_the_list_is_of_one_worker_and_outcome(page: Page, served: Served) -> None:
    """As many as the log has; arrow keys go by them."""
    with Recording.open(served.log) as recording:
        there = [each for each in recording.requests.between() if each.worker]
        mine = [each for each in there if recording.names.worker(each.worker) == "decode-5"]
        aborted = [each for each in mine if each.outcome == "abort"]
    page.get_by_label("List only the worker").select_option("decode-5")
    expect(page.locator("#list-count")).to_have_text(f"{len(mine):,} of {len(there):,}")
    page.get_by_label("List only the outcome").select_option("abort")
    expect(page.locator("#list-count")).to_have_text(f"{len(aborted):,} of {len(there):,}")
    page.locator("#list").press("Home")
    expect(page.locator("#decision h3 code")).to_have_text(aborted[0].request)
    expect(page.get_by_label("List only the tenant")).to_be_hidden()
    expect(page.get_by_label("List only the model")).to_be_hidden()


def test_times_are_local_if_asked(served: Served, browser: Browser) -> None:
    """In the zone of the machine that the browser runs on; UTC before."""
    context = browser.new_context(viewport={"width": 1680, "height": 1050}, timezone_id="Asia/Kolkata")
    page = context.new_page()
    page.goto(served.url)
    ready(page)
    utc = page.locator("#readout b").inner_text()
    page.locator("#zone").click()
    expect(page.locator("#zone")).to_have_text("local")
    expect(page.locator("#readout")).to_contain_text("local · decision")
    hours, minutes = (int(each) for each in utc.split(":")[:2])
    later = (hours * 60 + minutes + 330) % 1440
    expect(page.locator("#readout b")).to_have_text(f"{later // 60:02}:{later % 60:02}{utc[5:]}")
    expect(chosen_row(page)).to_contain_text(f"{later // 60:02}:{later % 60:02}{utc[5:]}")
    page.locator("#zone").click()
    expect(page.locator("#readout b")).to_have_text(utc)
    context.close()


def test_a_search_shows_all_of_the_request(page: Page) -> None:
    """It jumps there, and zooms to the request from its arrival to its end."""
    page.keyboard.press("Home")
    request = chosen_row(page).locator(".id").inner_text()
    readout, span = page.locator("#readout"), re.compile(r"· ([\d.]+ m?s) shown")
    expect(readout).to_contain_text(span)
    whole = span.search(readout.inner_text())
    page.keyboard.press("/")
    page.keyboard.type(request)
    page.keyboard.press("Enter")
    assert whole is not None
    expect(readout).not_to_contain_text(whole[0])  # the request was chosen before the search, too
    expect(page.locator("#decision h3 code")).to_have_text(request)
    took = page.locator("#list .row[aria-selected=true] .took").inner_text()
    shown = span.search(readout.inner_text())
    assert shown is not None

    def ms(text: str) -> float:
        value, unit = text.split()
        return float(value) * (1000 if unit == "s" else 1)

    assert ms(took) < ms(shown[1]) <= 2 * max(ms(took), 500) + 20


def test_a_scenario_is_a_picture(page: Page) -> None:
    """Two distributions over the same requests, and the requests that moved most, which open."""
    page.get_by_role("tab", name="What if").click()
    page.get_by_label("policy").select_option("round-robin")
    spread = page.locator("#spread")
    expect(spread).to_contain_text(re.compile(r"First tokens of \d+ requests"))
    halves = spread.locator(".half")
    for half, text in zip(halves.all(), ("recorded", "then"), strict=True):
        expect(half).to_have_attribute("aria-label", re.compile(rf"^{text}: p50 [\d.]+ m?s, p99 "))
        heights = half.locator("i").evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().height)")
        assert len(heights) == 48 and max(heights) > 5
    rows = page.locator("#outcome table").last.locator("tbody tr")  # one whose worker died may have no first token
    moved = rows.filter(has_text=re.compile(r"[\d.]+ m?s → [\d.]+ m?s")).first
    expect(moved).to_be_visible()
    request = moved.locator(".link").inner_text()
    moved.locator(".link").click()
    page.get_by_role("tab", name="Decision").click()
    expect(page.locator("#decision h3 code")).to_have_text(request)


def test_a_first_visit_says_that_it_loads(served: Served, browser: Browser) -> None:
    """A bar and no figures, while nothing is known: no "0 decisions", and no axis from 1970."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    context.route("**/debug/api/timeline*", lambda route: None)
    page.goto(served.url)
    page.wait_for_function("() => document.querySelector('#totals').textContent !== ''")
    expect(page.locator("#empty")).to_contain_text("Loading")
    expect(page.locator("#loading")).to_be_visible()
    assert "0 decisions" not in page.locator("body").inner_text()
    assert "0 decisions" not in (page.locator("#trends").get_attribute("aria-label") or "")
    drawn = page.evaluate(
        """async () => {
            const texts = [], fill = CanvasRenderingContext2D.prototype.fillText;
            CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
                texts.push(text);
                fill.call(this, text, ...rest);
            };
            window.dispatchEvent(new Event("resize"));
            document.querySelector("#lanes").style.setProperty("height", "200px");
            await new Promise(done => setTimeout(done, 300));
            return texts;
        }"""
    )
    assert drawn
    assert not [text for text in drawn if re.match(r"\d\d:\d\d|1970", text)]
    context.unroute_all(behavior="ignoreErrors")
    context.close()


def test_names_are_text(browser: Browser, tmp_path: Path) -> None:
    """Whatever a log calls its workers and requests, the page writes it down and runs nothing."""
    evil = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    log = made(tmp_path / "evil.contrail", Scale(decisions=200, prefix=evil))
    with serving("--log", str(log)) as url, looking(browser, url) as page:
        ready(page)
        for key in "1234":
            page.keyboard.press(key)
        page.keyboard.press("1")
        expect(page.locator("#decision h3 code")).to_contain_text(evil)
        assert page.locator("img").count() == 0
        assert page.locator("body script").count() == 0
        assert page.title() == "prod · Contrail"


def test_cache_hits_are_counted_on_demand(page: Page, served: Served) -> None:
    """The sentence and the sums of `contrail cache`; another choice of rows counts again."""
    with Recording.open(served.log, KEY) as recording:
        by_cause, by_worker = (cache_losses(recording, by=by) for by in (BY_CAUSE, BY_WORKER))
    page.locator("#tab-cache").click()
    found = page.locator("#cache")
    expect(found.locator(".verdict")).to_have_text(judge(by_cause.total.sums).text, timeout=30_000)
    for name, tokens in (("from a cache", by_cause.total.sums.achieved), ("cold", by_cause.total.sums.cold)):
        expect(found.locator("tr", has_text=re.compile(f"^{name}")).locator("td").last).to_have_text(f"{tokens:,}")
    page.locator("#cache-by").select_option("worker")
    expect(found.locator("tbody tr")).to_have_count(len(by_worker.rows) + 1, timeout=30_000)
    expect(found.locator("tbody tr").first).to_contain_text(by_worker.rows[0].name)


def test_a_long_recording_opens_on_its_last_minute(browser: Browser, tmp_path: Path) -> None:
    """Not on everything with empty hours; all of it is a key away."""
    log = made(tmp_path / "long.contrail", Scale(decisions=600, requests_per_s=0.6))
    with serving("--log", str(log)) as url, looking(browser, url) as page:
        ready(page)
        shown = re.search(r"· ([\d.]+ s|1 min \d\d s) shown", page.locator("#readout").inner_text())
        assert shown is not None, page.locator("#readout").inner_text()
        page.keyboard.press("0")
        expect(page.locator("#readout")).to_contain_text(re.compile(r"1\d min \d\d s shown"))


def test_a_large_fleet_folds_into_groups(browser: Browser, tmp_path: Path) -> None:
    """Forty workers are twenty lines of two, each worker a line of a heat map; a press opens the lanes of a group."""
    log = made(tmp_path / "fleet.contrail", Scale(decisions=800, workers=40, requests_per_s=200.0))
    with serving("--log", str(log)) as url, looking(browser, url) as page:
        ready(page)
        lanes = page.locator("#lanes")
        below = "element => element.scrollHeight - element.clientHeight"
        drawn = """async () => {
            const found = [], fill = CanvasRenderingContext2D.prototype.fillText;
            CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
                found.push(text);
                fill.call(this, text, ...rest);
            };
            ACT;
            await new Promise(done => setTimeout(done, 400));
            CanvasRenderingContext2D.prototype.fillText = fill;
            return found;
        }"""
        names = page.evaluate(drawn.replace("ACT", "document.querySelector('#zoom-in').click()"))
        assert {"▸ decode-0 … 1", "▸ decode-38 … 39"} <= set(names)
        assert "decode-1" not in names
        before = lanes.evaluate(below)
        press = "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'g', bubbles: true }))"
        names = page.evaluate(drawn.replace("ACT", press))
        worker = page.locator("#list .row[aria-selected=true] span").nth(2).inner_text()
        assert worker in names, "the lane of the decision at the cursor"
        assert lanes.evaluate(below) > before
        box = lanes.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + 30, box["y"] + 45)
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 60)
        expect(page.locator("#decision h3 code")).to_contain_text("req-")
        rows = page.locator("#state table").first.locator("tbody tr")
        expect(rows).to_have_count(32)
        expect(page.locator("#state")).to_contain_text("The 32 busiest of 40 workers")
        expect(rows.and_(page.locator(".chosen"))).to_have_count(1)
        page.locator("#every-worker").click()
        expect(rows).to_have_count(40)


def test_nothing_to_show_says_what_to_do(browser: Browser, tmp_path: Path) -> None:
    """A recording without decisions."""
    log = made(tmp_path / "empty.contrail", Scale(decisions=0))
    with serving("--log", str(log)) as url, looking(browser, url) as page:
        expect(page.locator("#empty")).to_contain_text("holds no decision: export a longer range")
        expect(page.locator("#state")).to_contain_text("decode-0")  # who was there, all the same


def test_the_token_is_asked_for_once(browser: Browser, served: Served) -> None:
    """Beyond loopback: refused without it, let in with it, and it leaves the address for a cookie."""
    with serving("--log", str(served.log), "--host", "0.0.0.0") as printed:
        url = printed.replace("0.0.0.0", "127.0.0.1")
        with looking(browser, url) as page:
            page.get_by_text("all states folded").wait_for()
            expect(page).to_have_url(re.compile(r"/debug(#.*)?$"))
            assert ROUTING in page.url or "#" not in page.url
            page.reload()
            page.get_by_text("all states folded").wait_for()
            assert page.evaluate("() => document.cookie") == ""
        context = browser.new_context()
        refused = context.new_page().goto(url.partition("?")[0])
        assert refused is not None
        assert refused.status == 401
        assert "contrail" in refused.text()
        context.close()

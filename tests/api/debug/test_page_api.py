"""What the page is told: every answer beside what the recording itself says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from api.debug import keyframes
from api.debug.page import create_page
from api.debug.page_api import create_page_api
from api.debug.recording_view import RecordingView
from api.debug.what_if_view import WINDOW_MAX
from core.clock import SystemClock
from core.events import LoadReported, RequestFinished, RequestPrefilled, RequestRouted
from core.ids import StreamSeq, from_column
from core.subjects import LOAD, ROUTING
from replay.explain.explain import explain
from replay.recording.moment import AtSequence
from replay.recording.recording import Recording
from replay.recording.request_history import PLACES
from replay.state_at.state_at import summary_at
from replay.whatif.scenario import Scenario
from replay.whatif.whatif import what_if
from streams.archive.archive_reader import ArchiveReader
from tests.fixtures.eventually import eventually
from tests.page.fleet import KEY, Scale, made
from tests.projections.facts import finished, joined
from tests.replay.staged import ASKED, KV, A, B, Stage
from tests.replay.staged import KEY as STAGED_KEY

DECISIONS = 700
STATIC = Path(create_page.__code__.co_filename).with_name("static")


class Shown(NamedTuple):
    http: httpx.AsyncClient
    view: RecordingView
    recording: Recording

    async def get(self, path: str, **query: object) -> Any:
        """The answer, which is one."""
        answer = await self.http.get(f"/debug/api{path}", params={k: str(v) for k, v in query.items()})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def refused(self, path: str, **query: object) -> str:
        """The sentence of an answer that is none."""
        answer = await self.http.get(f"/debug/api{path}", params={k: str(v) for k, v in query.items()})
        assert answer.status_code == 400
        return str(answer.json()["error"])

    async def columns(self) -> dict[str, list[Any]]:
        """All decisions."""
        found = await self.get("/timeline", after=0)
        assert not found["more"]
        decisions: dict[str, list[Any]] = found["decisions"]
        return decisions


@pytest.fixture(scope="module")
async def shown(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shown]:
    """Seven hundred decisions with a worker killed and settings changed, read and folded."""
    log = made(tmp_path_factory.mktemp("debug") / "run.contrail", Scale(decisions=DECISIONS))
    view = RecordingView(log.name, KEY, SystemClock())
    view.start()
    await view.show(ArchiveReader.open(log))
    await eventually(lambda: view.status()["folded"] == 1, "folded", 30)
    site = create_page(create_page_api(view), None)
    transport = httpx.ASGITransport(app=site)
    with Recording.open(log, KEY) as recording:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
            yield Shown(http, view, recording)
    await view.close()


def recorded(recording: Recording) -> list[tuple[int, RequestRouted]]:
    """Every decision with its number."""
    return [
        (record.seq * PLACES + place, event)
        for record, message in recording.messages(ROUTING)
        for place, event in enumerate(message.events)
        if isinstance(event, RequestRouted)
    ]


async def test_the_timeline_is_what_was_recorded(shown: Shown) -> None:
    """Each decision once, with what came of it; everybody by name; and what else happened."""
    columns = await shown.columns()
    found = await shown.get("/timeline")
    expected = recorded(shown.recording)
    assert columns["n"] == [n for n, _ in expected]
    assert len(expected) == DECISIONS
    for row, (_, event) in enumerate(expected):
        assert columns["request"][row] == event.request
        assert columns["attempt"][row] == event.attempt
        assert columns["prompt_tokens"][row] == event.prompt_tokens
        assert columns["predicted"][row] == event.predicted_cached_tokens
        assert found["workers"][columns["worker"][row]]["id"] == event.worker
    ends = {
        (event.request, event.attempt): event
        for _, message in shown.recording.messages(ROUTING)
        for event in message.events
        if isinstance(event, RequestFinished)
    }
    outcomes = [*found["outcomes"], ""]
    for request, attempt, outcome, lasted in zip(
        columns["request"], columns["attempt"], columns["outcome"], columns["duration_ms"], strict=True
    ):
        end = ends.get((request, attempt))
        assert outcomes[outcome] == (end.outcome if end else "")
        assert lasted == (end.duration_ms if end else -1)
    assert sorted({worker["name"] for worker in found["workers"]}) == [f"decode-{n}" for n in range(8)]
    lost = [worker for worker in found["workers"] if worker["end"] == "lost"]
    assert [worker["name"] for worker in lost] == ["decode-2"]
    kinds = {note["kind"] for note in found["notes"]}
    assert kinds >= {"worker_joined", "worker_lost", "settings", "migrated", "rejected", "doubt", "replica_joined"}
    changed = [note["text"] for note in found["notes"] if note["kind"] == "settings"]
    assert "frontend-3 uses revision 1: decode_weight 0.06 → 2.5, temperature 0 → 0.15" in changed


async def test_what_follows_is_asked_for_by_position(shown: Shown) -> None:
    """Decisions behind a message, what became of those before it, and notes that were not told yet."""
    columns = await shown.columns()
    seq = columns["n"][400] // PLACES
    found = await shown.get("/timeline", after=seq - 1, notes=3, run=shown.view.run)
    assert found["decisions"]["n"] == columns["n"][400:]
    assert found["notes_from"] == 3
    again = await shown.get("/timeline", after=0, notes=3, run="another")
    assert again["notes_from"] == 0
    nothing = await shown.get("/timeline", after=found["after"])
    assert nothing["decisions"]["n"] == []


async def test_a_decision_is_its_record(shown: Shown) -> None:
    """All recorded candidates, costs that add up, the settings in force; the full story beside it is explain's."""
    for n, event in recorded(shown.recording)[::97]:
        found = await shown.get(f"/decision/{n}")
        assert found["request"] == event.request
        assert found["digest"] == event.digest
        assert [row["worker"] for row in found["candidates"]] == from_column(event.candidates)
        assert [row["chosen"] for row in found["candidates"]].count(True) == 1
        for row, cost in zip(found["candidates"], event.columns["cost"], strict=True):
            assert row["cost"] == cost / 1000
            assert row["prefill_cost"] + row["decode_cost"] + row["request_cost"] == pytest.approx(row["cost"])
        assert found["settings_known"]
        assert found["settings"]["decode_weight"] == (2.5 if event.settings_revision else 0.06)
        told = await shown.get(f"/explanation/{n}")
        explained = explain(shown.recording, event.request)
        attempts = msgspec.to_builtins(explained.attempts)
        more = {"known": True, "uses": 1, "summary": explained.summary, "course": explained.course}
        assert told | {"known": True} == {**attempts[event.attempt], **msgspec.to_builtins(more)}
    assert "no decision routing:1+0" in await shown.refused(f"/decision/{PLACES}")
    assert "no such decision" in await shown.refused(f"/explanation/{PLACES}")
    assert "is no whole number" in await shown.refused("/decision/1e9")


async def test_two_attempts_in_one_message_are_told_apart(tmp_path: Path) -> None:
    """Each by its own number, with what came of it."""
    stage = Stage()
    for name, worker in (("a", A), ("b", B)):
        stage.say(KV, worker, joined(name))
    stage.replica()
    first, second = (stage.decided("r", ASKED, attempt=attempt) for attempt in (0, 1))
    declined = msgspec.structs.replace(finished("r"), outcome="declined")
    seq = stage.tell(first, declined, second, finished("r", attempt=1))
    view = RecordingView("log", STAGED_KEY, SystemClock())
    view.start()
    await view.show(ArchiveReader.open(stage.archived(tmp_path / "log")))
    await eventually(lambda: view.status()["folded"] == 1, "folded")
    told = [await view.explanation(seq * PLACES + place) for place in (0, 2)]
    await view.close()
    assert [(each["attempt"], each["outcome"]) for each in told] == [(0, "declined"), (1, "stop")]


async def test_the_state_is_the_fold(shown: Shown) -> None:
    """Before a decision, at a time, and as a replica believed."""
    decisions = recorded(shown.recording)
    for n, _ in decisions[50::150]:
        found = await shown.get("/state", n=n)
        expected = summary_at(shown.recording, AtSequence(ROUTING, StreamSeq(n // PLACES)))
        assert found["digest"] == expected.digest
        assert found["cursor"] == expected.cursor
        assert [worker["name"] for worker in found["workers"]] == [worker.name for worker in expected.workers]
        assert found["in_flight_total"] == len(expected.in_flight)
    n, event = decisions[500]
    who = next(
        shown.recording.names.replica(record.subject.rpartition(".")[2])
        for record, message in shown.recording.messages(ROUTING, n // PLACES)
        if event in message.events
    )
    believed = await shown.get("/state", n=n, replica=who)
    assert believed["seat"]["request"] == event.request
    assert "no replica 'nobody'" in await shown.refused("/state", n=n, replica="nobody")
    assert "either n or ms" in await shown.refused("/state")
    by_time = await shown.get("/state", ms=shown.view.timeline.to_ms + 1)
    assert by_time["cursor"] == shown.recording.end


async def test_a_state_that_is_not_folded_yet_is_waited_for(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """202 instead of an answer that takes long."""
    monkeypatch.setattr(keyframes, "FOLD_MAX", 0)
    answer = await shown.http.get("/debug/api/state", params={"n": str(recorded(shown.recording)[300][0])})
    assert answer.status_code == 202
    assert answer.json()["pending"]


async def test_what_if_is_the_library(shown: Shown) -> None:
    """The same outcome as `replay.whatif.whatif` over the same decisions, with every change by number."""
    columns = await shown.columns()
    window = {"from_n": columns["n"][300], "to_n": columns["n"][399]}
    asked = {**window, "settings": {"decode_weight": 4, "policy": "kv"}, "without": ["decode-5"], "delay_ms": 20}
    answer = await shown.http.post("/debug/api/what-if", json=asked)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    scenario = Scenario.parse({key: asked[key] for key in ("settings", "without", "delay_ms")})
    start, end = window["from_n"] // PLACES, window["to_n"] // PLACES + 1
    (expected,) = what_if(shown.recording, [scenario], start, end)
    assert found["decisions"] == expected.decisions == 100
    assert found["changed"] == expected.changed == len(found["changes"]) > 0
    for row, change in zip(found["changes"], expected.changes, strict=True):
        at_row = columns["n"].index(row["n"])
        assert columns["request"][at_row] == change.request
        assert row["worker"] == change.new_worker
        assert row["regret_blocks"] == change.regret_blocks
    assert found["hit_rate_new"] == expected.hit_rate_new
    same = await shown.http.post("/debug/api/what-if", json=window)
    assert same.json()["changed"] == 0, "as recorded, nothing changes"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"from_n": 0, "to_n": 1}, f"ask about 1 to {WINDOW_MAX} decisions at once, not about 0"),
        ({"from_n": 0, "to_n": 2**40, "settings": {"weight": 1}}, "routing.weight: no such setting"),
        ({"from_n": 0, "to_n": 2**40, "without": ["nobody"]}, "no worker 'nobody'"),
        ({"from_n": 0, "to_n": 2**40, "more": 1}, "cannot be read"),
        ({"from_n": 0, "to_n": 2**40, "delay_ms": -1}, "delay_ms"),
    ],
)
async def test_what_if_says_what_is_wrong(shown: Shown, body: dict[str, Any], said: str) -> None:
    """One sentence."""
    answer = await shown.http.post("/debug/api/what-if", json=body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]


async def test_a_question_comes_as_json_and_is_short(shown: Shown) -> None:
    """Forms that another site could send without asking are refused, and so are endless ones."""
    plain = await shown.http.post("/debug/api/what-if", content=b"{}", headers={"content-type": "text/plain"})
    assert (plain.status_code, plain.json()["error"]) == (400, "send application/json")
    headers = {"content-type": "application/json"}
    long = await shown.http.post("/debug/api/what-if", content=b" " * 100_000, headers=headers)
    assert "longer than" in long.json()["error"]


@pytest.mark.parametrize("digits", ["0" * 17 + "1", "0" * 17 + "9" * 5000, str(2**53 + 1), "٣", "-1", "1_0", ""])
async def test_numbers_are_those_of_a_browser(shown: Shown, digits: str) -> None:
    """Sixteen digits, and no more than its numbers are exact for: one sentence, wherever one stands."""
    assert "n: " in await shown.refused("/state", n=digits)
    assert "after: " in await shown.refused("/timeline", after=digits)


async def test_times_are_those_of_the_calendar(shown: Shown) -> None:
    """The last one is the end of the year 9999: later ones have no name."""
    last = 253_402_300_799_000
    window = {"from_ms": 0, "to_ms": last}
    assert (await shown.get("/state", ms=last))["cursor"] == shown.recording.end
    assert len((await shown.get("/replicas", ms=last))["replicas"]) == 4
    assert len((await shown.get("/load", **window))["workers"]) == 9
    for path, query in (
        ("/state", {"ms": last + 1}),
        ("/replicas", {"ms": 2**53}),
        ("/load", {**window, "to_ms": 2**53}),
    ):
        assert "beyond the year 9999" in await shown.refused(path, **query)


async def test_search_finds_what_people_type(shown: Shown) -> None:
    """A whole id, its beginning, a part of it, a place in the log, a time."""
    columns = await shown.columns()
    request = columns["request"][123]
    assert (await shown.get("/search", q=request))["found"][0] == columns["n"][123]
    assert columns["n"][123] in (await shown.get("/search", q=request[:9].upper()))["found"]
    assert (await shown.get("/search", q=request[6:]))["found"] == [columns["n"][123]]
    assert (await shown.get("/search", q=f"routing:{columns['n'][50] // PLACES}"))["found"] == [columns["n"][50]]
    many = await shown.get("/search", q="req-")
    assert (len(many["found"]), many["more"]) == (50, True)
    assert (await shown.get("/search", q="no such thing"))["found"] == []
    assert (await shown.get("/search", q=""))["found"] == []
    (by_time,) = (await shown.get("/search", q="14:13:25"))["found"]
    before = columns["ms"][columns["n"].index(by_time)]
    assert before <= 1_790_000_005_000 < columns["ms"][columns["n"].index(by_time) + 1]


async def test_replicas_report_and_agree(shown: Shown) -> None:
    """At a moment: how many decisions, what each had reported by then, and that equal cursors had equal digests."""
    last = await shown.get("/replicas", ms=shown.view.timeline.to_ms)
    assert [each["name"] for each in last["replicas"]] == [f"frontend-{n}" for n in range(4)]
    assert sum(each["decisions"] for each in last["replicas"]) == DECISIONS
    assert all(each["agrees"] for each in last["replicas"])
    for each in last["replicas"]:
        for stream, said in each["report"]["streams"].items():
            there = shown.recording.archive.seek(stream, each["report"]["ms"]) - 1
            assert said["lag"] == there - said["seq"] >= 0
    first = await shown.get("/replicas", ms=shown.view.timeline.from_ms)
    assert [each["report"] for each in first["replicas"]] == [None] * 4


async def test_load_is_thinned_to_its_peaks(shown: Shown) -> None:
    """Of all reports in a stretch the highest values are kept."""
    timeline = shown.view.timeline
    window = {"from_ms": timeline.from_ms, "to_ms": timeline.to_ms}
    thin = (await shown.get("/load", **window, points=4))["workers"]
    reports: dict[str, list[int]] = {}
    for record, message in shown.recording.messages(LOAD):
        running = [event.running for event in message.events if isinstance(event, LoadReported)]
        reports.setdefault(record.subject.rpartition(".")[2], []).extend(running)
    for each in thin:
        assert len(each["ms"]) <= 5
        assert max(each["running"]) == max(reports[timeline.workers[each["worker"]].id])
    fine = (await shown.get("/load", **window, points=4000))["workers"]
    assert [len(each["ms"]) for each in fine] == [len(reports[timeline.workers[each["worker"]].id]) for each in fine]


async def test_many_ask_at_once(shown: Shown) -> None:
    """Whatever can wait its turn is answered; the rest is told to come again."""
    numbers = [n for n, _ in recorded(shown.recording)]
    answers = await asyncio.gather(
        *(shown.http.get("/debug/api/state", params={"n": str(n)}) for n in numbers[100:220])
    )
    statuses = {answer.status_code for answer in answers}
    assert statuses <= {200, 503}
    assert sum(answer.status_code == 200 for answer in answers) >= 64


async def test_the_page_is_its_own(shown: Shown) -> None:
    """Its files come from here alone, nothing stands in it that the policy would have to allow."""
    page = await shown.http.get("/debug")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in page.headers
    for name in re.findall(r'(?:src|href)="/debug/static/([^"]+)"', page.text):
        assert (await shown.http.get(f"/debug/static/{name}")).status_code == 200
    assert (await shown.http.get("/debug/static/../site.py")).status_code == 404
    assert (await shown.http.get("/debug/static/nothing.js")).status_code == 404
    html = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=", html)
    scripts = {path.name: path.read_text() for path in STATIC.glob("*.js")}
    for name, script in scripts.items():
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|https?://(?!www\.w3)", script
        ), name
        for imported in re.findall(r'from "\./([^"]+)"', script):
            assert imported in scripts, name


async def test_first_tokens_are_told_later(shown: Shown) -> None:
    """A decision's first token and end change what was told of it, wherever a reader stands."""
    columns = await shown.columns()
    tokens = {
        (event.request, event.attempt): event.ttft_ms
        for _, message in shown.recording.messages(ROUTING)
        for event in message.events
        if isinstance(event, RequestPrefilled)
    }
    for row, request in enumerate(columns["request"]):
        assert columns["ttft_ms"][row] == tokens.get((request, columns["attempt"][row]), -1)

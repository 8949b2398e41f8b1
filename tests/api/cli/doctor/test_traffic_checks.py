"""The sentences on the newest traffic: learned prices, deaths and lost cache hits, in logs made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from api.cli.doctor import traffic_checks
from api.cli.doctor.finding import Finding
from api.cli.doctor.newest_copy import NewestCopy
from api.cli.doctor.traffic_checks import DEATHS_S, check_cache, check_deaths, check_price, check_traffic
from api.cli.renderer import OK, WARNING
from core.errors import Corrupt
from core.events import WorkerLost
from core.ids import LOST_SUFFIX, StreamSeq
from core.subjects import ROUTING
from projections.policy.prefill_time import PrefillTime
from replay.cache.cache_report import CacheReport, CacheRow, CacheSums
from replay.explain.death_list import REPLICA, WORKER, Death
from replay.explain.price_check import PriceCheck, PriceCost
from replay.recording.recording import Recording
from tests.projections.facts import prefilled, removed, stored
from tests.replay.priced import TRUE, WRONG, PricedStage
from tests.replay.staged import ASKED, HASHES, KV, A, R, Stage

NOW_MS = 1_700_000_600_000


def findings(stage: Stage, folder: Path, start: int = 1, now_ms: int = 0, **snapshot: Any) -> dict[str, Finding]:
    """By name, of the whole log or of its end."""
    with stage.recording(folder / "log", **snapshot) as recording:
        messages = sum(len(frames) for frames in stage.frames.values())
        copy = NewestCopy(recording, StreamSeq(start), start == 1, messages)
        return {each.name: each for each in check_traffic(copy, now_ms or stage.clock.now_ms)}


# --- prices ----------------------------------------------------------------------------------------------------------


def test_a_price_that_is_far_too_high_is_named_with_its_factor(tmp_path: Path) -> None:
    """571 us a token were learned where 20 are taken."""
    scene = PricedStage()
    for _ in range(20):
        scene.ask(WRONG)
    found = findings(scene.stage, tmp_path)["prefill_price"]
    assert found.status == WARNING
    assert found.text == (
        "In the whole log: 20 prefills of tiny that were alone on their worker took 8.0 ms in the median, and their "
        "decisions took them to last 174 ms: 21.7 times as long, which is out of its range. They show 20 us a token "
        "and 2.0 ms for each prefill; 20 of 20 decisions rest on a line that is farther than a factor of 2 from that. "
        "Under that line 0 of the newest 20 decisions that could be made again fall otherwise, and the mean first "
        "token of 8.0 ms stays as it is, by estimate. "
        "`contrail settings set prefill_us_per_token 20 prefill_base_us 1980` sets it, for all models; "
        "`prefill_us_per_token 0` goes back to what is learned."
    )
    (facts,) = found.facts["models"]
    assert (facts["model"], facts["beyond"], facts["in_range"]) == ("tiny", 20, False)


def test_a_price_that_costs_time_is_named_with_its_cost(tmp_path: Path) -> None:
    scene = PricedStage()
    scene.wait_behind_long_prompts()
    found = findings(scene.stage, tmp_path)["prefill_price"]
    assert found.status == WARNING
    assert "0.022 times as long, which is out of its range" in found.text
    (facts,) = found.facts["models"]
    cost = facts["cost"]
    changed = f"Under that line {cost['changed']} of the newest {cost['decisions']} decisions that could be made again"
    assert f"{changed} fall otherwise, and the mean first token of 26.5 ms" in found.text
    assert f"comes {-cost['ttft_change_ms']:.1f} ms sooner, by estimate." in found.text


def test_a_right_price_is_well(tmp_path: Path) -> None:
    scene = PricedStage()
    for _ in range(20):
        scene.ask(TRUE)
    found = findings(scene.stage, tmp_path)["prefill_price"]
    assert (found.status, found.text) == (
        OK,
        (
            "In the whole log: 20 prefills of tiny that were alone on their worker took 8.0 ms in the median, and "
            "their decisions took them to last 8.0 ms: 1.0 times as long."
        ),
    )


def test_without_learned_prices_or_samples_nothing_is_judged(tmp_path: Path) -> None:
    scene = PricedStage()
    scene.ask(None)
    found = findings(scene.stage, tmp_path)["prefill_price"]
    assert found.text == "In the whole log, no decision rests on a learned duration of prefills."
    scene.ask(WRONG)
    found = findings(scene.stage, tmp_path)["prefill_price"]
    assert (found.status, found.text) == (
        OK,
        (
            "In the whole log: of 1 decision on tiny under a learned duration of prefills, 1 led to prefills that had "
            "no other prefill beside them; 16 are needed to judge it."
        ),
    )


CHECK = PriceCheck(
    model="m", decisions=9, samples=20, tokens=100.0, estimate_ms=50.0, actual_ms=5.0, factor=10.0, apart_ms=45.0,
    shown=PrefillTime(2_000, 20_500), beyond=9,
)  # fmt: skip
COST = PriceCost(decisions=10, changed=1, ttft_recorded_ms=100.0, ttft_change_ms=0.06, is_timed=True)


@pytest.mark.parametrize(
    ("found", "status", "text"),
    [
        pytest.param(
            replace(CHECK, beyond=4),
            OK,
            "At the length of whole prompts, 5 of 9 decisions are within a factor of 2, or too near to matter.",
            id="a base alone",
        ),
        pytest.param(
            replace(CHECK, shown=None), WARNING, "Longer prompts took no longer here, so no price", id="no line"
        ),
        pytest.param(CHECK, WARNING, "9 of 9 decisions rest on a line that is farther than", id="the decisions"),
        pytest.param(
            CHECK,
            WARNING,
            "--set prefill_us_per_token=20.5 --set prefill_base_us=2000 --from routing:7` says what that costs.",
            id="without a cost",
        ),
        pytest.param(
            replace(CHECK, shown=PrefillTime(0, 1_000_001)), WARNING, "a factor of 2 from that.", id="beyond settings"
        ),
        pytest.param(
            replace(CHECK, cost=COST),
            WARNING,
            "falls otherwise, and the mean first token of 100 ms comes 0.1 ms later, by estimate.",
            id="at the least change that is shown",
        ),
        pytest.param(
            replace(CHECK, cost=replace(COST, ttft_change_ms=0.04)), WARNING, "stays as it is", id="below that"
        ),
        pytest.param(
            replace(CHECK, cost=replace(COST, is_timed=False)), WARNING, "no difference in time is", id="untimed"
        ),
        pytest.param(
            replace(CHECK, cost=COST),
            WARNING,
            "`contrail settings set prefill_us_per_token 20.5 prefill_base_us 2000` sets it",
            id="its remedy",
        ),
    ],
)
def test_the_sentence_of_a_price(found: PriceCheck, status: str, text: str, tmp_path: Path) -> None:
    with pair().recording(tmp_path / "log") as recording:
        finding = check_price([found], NewestCopy(recording, StreamSeq(7), is_whole=False, messages=9))
    assert finding.status == status
    assert finding.text.startswith("In the log from routing:7 on: 20 prefills of m")
    assert text in finding.text


def test_the_cost_is_not_estimated_in_a_large_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = PricedStage()
    for _ in range(20):
        scene.ask(WRONG)
    messages = sum(len(frames) for frames in scene.stage.frames.values())
    for most, is_estimated in ((messages, True), (messages - 1, False)):
        monkeypatch.setattr(traffic_checks, "PLAYED_MESSAGES_MAX", most)
        found = findings(scene.stage, tmp_path)["prefill_price"]
        assert found.status == WARNING
        assert ("by estimate." in found.text) is is_estimated
        assert ("`contrail replay what-if --set" in found.text) is not is_estimated


# --- deaths ----------------------------------------------------------------------------------------------------------


def test_a_worker_that_died_a_moment_ago(tmp_path: Path) -> None:
    stage = Stage()
    stage.pair()
    stage.replica()
    stage.say(KV, f"{A}{LOST_SUFFIX}", WorkerLost(by=R, reason="no lease"), about=A)
    found = findings(stage, tmp_path, now_ms=stage.clock.now_ms + 12_000)["deaths"]
    assert (found.status, found.text) == (
        WARNING,
        (
            "1 death in the last 10 minutes: worker left 12s ago, found by r1 (no lease); 0 attempts broke off there, "
            "and no other one of its name has joined."
        ),
    )
    (death,) = found.facts["deaths"]
    assert (death["name"], death["ago_s"], death["attempts"]) == ("left", 12.0, 0)


@pytest.mark.parametrize(("later_ms", "status"), [(1000 * DEATHS_S, WARNING), (1000 * DEATHS_S + 1, OK)])
def test_a_death_counts_for_so_long(tmp_path: Path, later_ms: int, status: str) -> None:
    stage = Stage()
    stage.pair()
    stage.replica()
    stage.say(KV, f"{A}{LOST_SUFFIX}", WorkerLost(by=R, reason="no lease"), about=A)
    assert findings(stage, tmp_path, now_ms=stage.clock.now_ms + later_ms)["deaths"].status == status


DEATH = Death(kind=WORKER, id="a", name="w", time_ms=NOW_MS - 50_000, by="f", reason="silent", attempts=2)


def test_the_newest_deaths_are_named() -> None:
    """The others are counted, and all are facts."""
    few = [replace(DEATH, id=f"{n}", name=f"w{n}", time_ms=NOW_MS - 60_000 + n * 1000) for n in range(3)]
    found = check_deaths(few, NOW_MS, 0)
    assert found.text.startswith("3 deaths in the last 10 minutes: worker w2 58s ago, found by f (silent);")
    assert "more died" not in found.text
    found = check_deaths([*few, replace(DEATH, kind=REPLICA, name="f2", back_ms=NOW_MS - 47_000)], NOW_MS, 0)
    assert found.text.startswith(
        "4 deaths in the last 10 minutes: front end f2 50s ago, found by f (silent); 2 attempts ended with it, and "
        "another one of its name joined 47s ago; worker w2 58s ago"
    )
    assert found.text.endswith(
        "; 1 more died in that time: `contrail events --type WorkerLost --type ReplicaLost` names them."
    )
    assert [death["name"] for death in found.facts["deaths"]] == ["f2", "w2", "w1", "w0"]


@pytest.mark.parametrize(("known_ms", "since"), [(NOW_MS - 600_000, "in the last"), (NOW_MS - 599_999, "since 2023-")])
def test_a_copy_that_begins_later_says_so(known_ms: int, since: str) -> None:
    found = check_deaths([], NOW_MS, known_ms)
    assert found.status == OK
    assert found.text.startswith(f"No worker and no front end was found dead {since}")


# --- cache -----------------------------------------------------------------------------------------------------------


def evicted(stage: Stage) -> None:
    """A worker held the prompt, and removed it before the request came again."""
    stage.say(KV, A, stored(*HASHES))
    stage.clock.advance(5)
    stage.say(KV, A, removed(*HASHES))
    stage.clock.advance(5)
    stage.route("r", ASKED)
    stage.tell(prefilled("r"))


def pair() -> Stage:
    it = Stage()
    it.pair()
    it.replica()
    return it


def test_one_cause_that_loses_most_is_a_warning(tmp_path: Path) -> None:
    stage = pair()
    evicted(stage)
    found = findings(stage, tmp_path)["cache"]
    assert (found.status, found.text) == (
        WARNING,
        (
            "In the whole log, by `contrail cache`: It was the capacity of the caches: 4.00 % of the prompt tokens "
            "were in no cache before, and 96.00 % were available and not used (evicted 96.00 %). Most of what was "
            "lost, 100 %, was lost by eviction: `contrail cache --by session` says where."
        ),
    )
    assert (found.facts["cause"], found.facts["lost"], found.facts["evicted"]) == ("evicted", 24, 24)


def test_what_was_gone_before_the_copy_is_not_known(tmp_path: Path) -> None:
    """The sentence says from when on caches are known, and the command names the range."""
    stage = pair()
    stage.say(KV, A, stored(*HASHES))
    snapshot = stage.snapshot()
    start = stage.say(ROUTING, R) + 1
    stage.clock.advance(5)
    stage.say(KV, A, removed(*HASHES))
    stage.clock.advance(5)
    stage.route("r", ASKED)
    stage.tell(prefilled("r"))
    found = findings(stage, tmp_path, start, snapshot=snapshot)["cache"]
    assert found.status == WARNING
    assert f"`contrail cache --by session --from routing:{start}` says where. Caches are known from 2023-" in found.text
    assert found.text.endswith(" on: a block that was gone by then counts as never held.")


def test_a_large_copy_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = pair()
    evicted(stage)
    messages = sum(len(frames) for frames in stage.frames.values())
    monkeypatch.setattr(traffic_checks, "PLAYED_MESSAGES_MAX", messages)
    assert findings(stage, tmp_path)["cache"].facts["judged"] is True
    monkeypatch.setattr(traffic_checks, "PLAYED_MESSAGES_MAX", messages - 1)
    found = findings(stage, tmp_path)["cache"]
    assert (found.status, found.facts["judged"]) == (OK, False)
    assert found.text.startswith(f"Lost cache hits are not judged here: that takes {messages} messages, and doctor")


@pytest.mark.parametrize(
    ("sums", "status"),
    [
        pytest.param({"evicted": 400, "sent_elsewhere": 399}, WARNING, id="more than half by one cause"),
        pytest.param({"evicted": 400, "sent_elsewhere": 400}, OK, id="half by each of two"),
        pytest.param({"evicted": 400, "cold": 401}, OK, id="the workload"),
        pytest.param({"evicted": 5, "achieved": 995}, OK, id="half a point"),
        pytest.param({"evicted": 6, "achieved": 994}, WARNING, id="more than half a point"),
        pytest.param({"unknown": 6, "achieved": 994}, WARNING, id="messages that are missing"),
        pytest.param({}, OK, id="no request"),
    ],
)
def test_the_bounds_of_a_cause(sums: dict[str, int], status: str, tmp_path: Path) -> None:
    total = CacheRow(name="", sums=CacheSums(prompt_tokens=sum(sums.values()), **sums))
    report = CacheReport(
        by="cause", total=total, rows=[], apart={}, first_ms=1, last_ms=2, history_from_ms=0, gaps=0, blocks_max=9,
        forgotten=0,
    )  # fmt: skip
    with pair().recording(tmp_path / "log") as recording:
        found = check_cache(report, NewestCopy(recording, StreamSeq(7), False, 9))
    assert found.status == status
    assert ("says where" in found.text) is (status == WARNING)


def test_a_copy_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check by itself: the others are made."""

    def damaged(recording: Recording, start: int) -> CacheReport:
        raise Corrupt(f"{recording!r} {start}")

    monkeypatch.setattr(traffic_checks, "cache_losses", damaged)
    found = findings(pair(), tmp_path)
    assert {name: each.status for name, each in found.items()} == {"prefill_price": OK, "deaths": OK, "cache": WARNING}
    assert found["cache"].text.startswith("This cannot be judged by the copy of the log: ")

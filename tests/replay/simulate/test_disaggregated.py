"""Prefill workers in a simulation: times by hand, thresholds, and what becomes of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import xxhash

from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.events import RequestPrefilled, RequestRouted, WorkerJoined
from core.events.jobs import PrefillCancelled, PrefillCompleted, PrefillFailed, PrefillPulled, PrefillStarted
from core.generation import PrefillReport
from core.ids import RequestId
from core.prompt import hashes_to_bytes
from core.settings import RoutingSettings
from core.subjects import JOBS, ROUTING
from replay.simulate.options import Options
from replay.simulate.report import PrefillVerdict, ServedRequest
from replay.simulate.simulated_log import KV
from replay.simulate.simulation import simulate
from replay.simulate.workload import Arrival
from tests.replay.simulate.said import Said, said

SIZE = 32
ENGINE = SimulatedSettings(block_size=SIZE, capacity_blocks=4000, context_max=100_000, max_seqs=16, eos_every=0)
TOKEN_US, BLOCK_US, STEP_US = ENGINE.prefill_us_per_token, ENGINE.transfer_us_per_block, ENGINE.decode_us_per_step
ROUTING_SETTINGS = RoutingSettings(policy="round-robin", remote_prefill_min_tokens=500, prefill_queue_max=2)


def asked(name: str, tokens: int, at_us: int = 0, *, like: str = "", output_tokens: int = 3) -> Arrival:
    """Its prompt is unlike all others, or begins as that of `like`."""
    blocks = range(tokens // SIZE)
    hashes = hashes_to_bytes(xxhash.xxh3_64_intdigest(f"{like or name}/{place}".encode()) for place in blocks)
    return Arrival(RequestId(name), at_us, tokens, hashes, output_tokens)


class Run(NamedTuple):
    """What came of it."""

    served: Mapping[str, ServedRequest]
    verdicts: Mapping[str, PrefillVerdict]
    reports: Mapping[str, PrefillReport]
    jobs: list[Said]

    def ttft_us(self, name: str) -> int:
        return self.served[name].first_us - self.served[name].arrival_us

    def of(self, kind: type) -> list[Any]:
        """Events of this kind in the jobs stream."""
        return [each.event for each in self.jobs if isinstance(each.event, kind)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def run(
    log: Path, *arrivals: Arrival, engine: SimulatedSettings = ENGINE, settings: Mapping[str, Any] = {}, **options: Any
) -> Run:
    """One decode worker and one prefill worker, unless it is said."""
    routing = RoutingSettings.parse({**ROUTING_SETTINGS.to_mapping(), **settings})
    wanted = Options(**{"workers": 1, "prefill_workers": 1, "engine": engine, "routing": routing, **options})
    verdicts: list[PrefillVerdict] = []
    found = simulate(wanted, arrivals, archive=log, on_verdict=verdicts.append)
    reports = {
        each.event.request: each.event.prefill
        for each in said(log, ROUTING)
        if isinstance(each.event, RequestPrefilled) and each.event.prefill is not None
    }
    assert [verdict.outcome for verdict in verdicts] == [reports[verdict.request].outcome for verdict in verdicts]
    return Run(
        {each.id: each for each in found.served},
        {each.request: each for each in verdicts},
        reports,
        said(log, JOBS),
    )


def test_first_tokens_come_when_they_should(log: Path) -> None:
    """A prompt of 1000 tokens is computed, its 32 blocks move, and the decode worker makes a step. What then is like it
    at its start needs the rest alone, on either worker."""
    found = run(log, asked("first", 1000), asked("then", 2000, 1_000_000, like="first"))

    assert found.ttft_us("first") == 1000 * TOKEN_US + 32 * BLOCK_US + STEP_US
    assert found.ttft_us("then") == (2000 - 31 * SIZE) * TOKEN_US + 32 * BLOCK_US + STEP_US
    first, then = (found.verdicts[name] for name in ("first", "then"))
    assert (first.blocks, first.pulled_tokens, first.cached_tokens, first.computed_tokens) == (32, 1000, 0, 1000)
    assert (then.blocks, then.pulled_tokens, then.cached_tokens, then.computed_tokens) == (32, 1008, 992, 1008)
    assert (first.queue_us, first.wait_us, first.pull_us) == (0, 1000 * TOKEN_US, 32 * BLOCK_US + STEP_US)
    assert (found.served["first"].cached_tokens, found.served["then"].cached_tokens) == (0, 992)
    pulled = found.of(PrefillPulled)
    assert [(it.blocks, it.bytes, it.tokens) for it in pulled] == [
        (32, 32 * ENGINE.block_bytes, tokens) for tokens in (1000, 1008)
    ]
    assert [each.end_us - each.first_us for each in found.served.values()] == [2 * STEP_US] * 2


def test_only_what_the_cache_lacks_counts_and_more_than_the_least(log: Path) -> None:
    """A prompt of which exactly so much is lacking is computed where it is decoded."""
    found = run(
        log,
        asked("least", 500),
        asked("more", 501, 1_000_000),
        asked("again", 900, 2_000_000, like="more"),
    )

    assert {name: report.reason for name, report in found.reports.items()} == {
        "least": "short",
        "more": "long",
        "again": "short",
    }
    assert found.ttft_us("least") == 500 * TOKEN_US
    assert found.reports["again"].uncached_tokens == 900 - 15 * SIZE


def test_no_more_wait_than_may(log: Path) -> None:
    """Of five at once one is taken, two wait, and the rest is computed where it is decoded. Who waits, waits for those
    before it."""
    found = run(log, *(asked(f"r{number}", 1000) for number in range(5)))

    reports = [found.reports[f"r{number}"] for number in range(5)]
    assert [report.reason for report in reports] == ["long"] * 3 + ["queue_full"] * 2
    assert [report.queued for report in reports] == [0, 0, 1, 2, 2]
    assert {report.queue_max for report in reports} == {2}
    waits = [found.verdicts[f"r{number}"].queue_us for number in range(3)]
    assert waits == [0, 1000 * TOKEN_US, 2000 * TOKEN_US]


def test_nobody_is_asked_for_what_is_being_fetched(log: Path) -> None:
    """A request with the same prompt waits until its blocks are there, and takes them from the cache; its verdict comes
    then. Another request does not wait."""
    found = run(log, asked("first", 1000), asked("same", 1000, 1000, like="first"), asked("other", 64, 2000))

    assert (found.reports["first"].reason, found.reports["same"].reason) == ("long", "short")
    assert found.served["same"].first_us > found.served["first"].first_us > found.served["other"].first_us
    assert found.served["same"].cached_tokens == 31 * SIZE
    assert len(found.of(PrefillPulled)) == 1


def test_nobody_is_waited_for_longer_than_allowed(log: Path) -> None:
    """Then the decode worker computes the prompt, and the prefill worker leaves it and has the next one."""
    found = run(log, asked("long", 2000), asked("next", 600, 65_000), settings={"prefill_wait_max_ms": 70})

    assert found.ttft_us("long") == 70_000 + 2000 * TOKEN_US
    report = found.reports["long"]
    assert (report.reason, report.outcome, report.wait_ms, report.pulled_tokens) == ("long", "deadline", 70, 0)
    assert found.verdicts["next"].queue_us == 5000
    assert [(it.reason, it.open) for it in found.of(PrefillFailed)] == [("withdrawn", 0)]
    assert [(it.reason, it.open) for it in found.of(PrefillCancelled)] == [("deadline", 1)]
    assert [it.job for it in found.of(PrefillCompleted)] == [found.reports["next"].job]


@pytest.mark.parametrize(
    ("changes", "outcome", "first_us"),
    [
        ({"keep_ms": 56}, "lease", 50_000 + 1000 * TOKEN_US),
        ({"keep_ms": 58}, "unconfirmed", 58_200 + 1000 * TOKEN_US),
        ({"keep_ms": 67, "transfer_us_per_block": 125}, "pulled", 59_000),
        ({"keep_ms": 67, "transfer_us_per_block": 126}, "unconfirmed", 59_032 + 1000 * TOKEN_US),
        ({"transfer_us_per_block": 400_000}, "transfer_failed", 10_050_000 + 1000 * TOKEN_US),
    ],
)
def test_blocks_are_not_used_too_late(log: Path, changes: dict[str, Any], outcome: str, first_us: int) -> None:
    """They are held for `keep_ms`, of which an eighth is left unused: a first token behind them that comes later stays,
    and the cache is forgotten. No pull lasts longer than ten seconds."""
    found = run(log, asked("it", 1000), engine=replace(ENGINE, **changes))

    assert (found.reports["it"].outcome, found.ttft_us("it")) == (outcome, first_us)


def test_blocks_wait_for_a_place_in_the_engine(log: Path) -> None:
    """While another one decodes in the only one; for as long as they are held, and no longer."""
    one = replace(ENGINE, max_seqs=1)
    before, it = asked("before", 100, output_tokens=61), asked("it", 1000, 1000)
    found, late = run(log, before, it, engine=one), run(log, before, it, engine=replace(one, keep_ms=80))

    free_us = found.served["before"].end_us
    assert free_us == 100 * TOKEN_US + 60 * STEP_US
    assert found.reports["it"].outcome == "pulled"
    assert found.served["it"].first_us == free_us + 32 * BLOCK_US + STEP_US
    assert (late.reports["it"].outcome, late.reports["it"].wait_ms) == ("no_slot", 70)
    assert late.served["it"].first_us == free_us + 1000 * TOKEN_US


def test_who_holds_most_of_a_prompt_gets_it(log: Path) -> None:
    """Without a turn in the queue, if it has nothing to do. The router saw it in what prefill workers told of their
    caches."""
    found = run(
        log,
        asked("first", 1000),
        asked("then", 2000, 1_000_000, like="first"),
        asked("last", 1000, 2_000_000),
        workers=2,
        prefill_workers=2,
    )

    first, then, last = found.of(PrefillStarted)
    joined = {each.owner: each.event for each in said(log, KV) if isinstance(each.event, WorkerJoined)}
    owner = {each.event.job: each.owner for each in found.jobs if isinstance(each.event, PrefillStarted)}
    assert owner[first.job] == owner[then.job]
    assert [joined[owner[it.job]].role for it in (first, last)] == ["prefill"] * 2
    assert [it.delivery for it in (first, then, last)] == [1, 0, 1]
    (hinted,) = [
        each.event
        for each in said(log, ROUTING)
        if isinstance(each.event, RequestRouted) and each.event.request == "then"
    ]
    assert (hinted.prefer, hinted.prefer_tokens) == (owner[first.job], 992)
    assert found.served["then"].cached_tokens == 0
    assert found.ttft_us("then") == 1008 * TOKEN_US + 63 * BLOCK_US + STEP_US

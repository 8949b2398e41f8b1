"""Workers that end without a word in the middle of a run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from core.events import (
    LocalChanged,
    RequestFinished,
    RequestMigrated,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
    WorkerJoined,
    WorkerLost,
)
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from replay.simulate.options import Options
from replay.simulate.report import ServedRequest, report
from replay.simulate.simulated_log import KV, START_MS
from replay.simulate.simulation import simulate
from tests.replay.simulate.families import ENGINE, families
from tests.replay.simulate.said import said

ARRIVALS = families(240, every_us=200_000, output_tokens=150)
"""48 seconds of them, each some 0.8 s under way."""
OPTIONS = Options(workers=4, engine=ENGINE, replicas=2, failures_per_hour=300, seed=4)
"""Four failures meanwhile."""


class Run:
    """What came of it."""

    def __init__(self, path: Path, options: Options = OPTIONS) -> None:
        found = simulate(options, ARRIVALS, archive=path)
        self.computed_tokens = found.computed_tokens
        self.served = {each.id: each for each in found.served}
        self.said = {stream: said(path, stream) for stream in (KV, LOAD, ROUTING)}

    @property
    def ends_ms(self) -> dict[str, int]:
        """When each worker ended that was serving somebody."""
        worker = {(e.request, e.attempt): e.worker for _, _, e in self.said[ROUTING] if isinstance(e, RequestRouted)}
        return {
            worker[event.request, event.attempt]: at_ms
            for at_ms, _, event in self.said[ROUTING]
            if isinstance(event, RequestFinished) and event.outcome == "worker_lost"
        }

    def again(self) -> list[ServedRequest]:
        """Requests that were routed more than once."""
        return [each for each in self.served.values() if each.attempts > 1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("failing") / "log")


def test_answers_are_whole(run: Run) -> None:
    """Whoever lost its worker went on elsewhere, with what it had as part of its prompt, from the token after it."""
    attempts = defaultdict(list)
    routed = {(e.request, e.attempt): e for _, _, e in run.said[ROUTING] if isinstance(e, RequestRouted)}
    for _, _, event in run.said[ROUTING]:
        if isinstance(event, RequestFinished):
            attempts[event.request].append(event)

    assert len(run.again()) >= 4
    for arrival in ARRIVALS:
        told = 0
        for number, event in enumerate(attempts[arrival.id]):
            assert event.prompt_tokens == routed[arrival.id, number].prompt_tokens == arrival.prompt_tokens + told
            assert len(routed[arrival.id, number].hashes) == event.prompt_tokens // ENGINE.block_size * 8
            told += event.output_tokens
        assert told == run.served[arrival.id].output_tokens == arrival.output_tokens
        assert [event.outcome for event in attempts[arrival.id]] == ["worker_lost"] * number + ["length"]
    migrated = {(e.request, e.told_tokens) for _, _, e in run.said[ROUTING] if isinstance(e, RequestMigrated)}
    lost = {(e.request, e.output_tokens) for each in attempts.values() for e in each[:-1] if e.output_tokens}
    assert migrated == lost
    assert migrated


def test_each_prompt_counts_where_it_was_computed(run: Run) -> None:
    """Also that of an answer which ended elsewhere, and there the rest of it: by what the log has of first tokens."""
    names = {owner: event.name for _, owner, event in run.said[KV] if isinstance(event, WorkerJoined)}
    routed = {(e.request, e.attempt): e for _, _, e in run.said[ROUTING] if isinstance(e, RequestRouted)}
    computed = dict.fromkeys([f"worker-{place}" for place in range(4)], 0)
    for _, _, event in run.said[ROUTING]:
        if isinstance(event, RequestPrefilled):
            choice = routed[event.request, event.attempt]
            computed[names[choice.worker]] += choice.prompt_tokens - event.cached_tokens

    assert run.computed_tokens == tuple(computed.values())
    served = list(run.served.values())
    spread = report(served, 4, computed=run.computed_tokens).load_spread.computed_tokens
    assert spread.per_worker == run.computed_tokens
    assert sum(run.computed_tokens) > sum(report(served, 4).load_spread.computed_tokens.per_worker)


def test_nobody_chooses_who_is_gone(run: Run) -> None:
    """From the moment of its end; each replica says first that it has no connection."""
    ends_ms = run.ends_ms
    assert len(ends_ms) >= 3
    for _, _, event in run.said[ROUTING]:
        if isinstance(event, RequestRouted):
            assert event.now_ms - START_MS <= ends_ms.get(event.worker, 1 << 40)
    told = {(owner, e.worker) for _, owner, e in run.said[ROUTING] if isinstance(e, LocalChanged) and e.reasons}
    replicas = {owner for _, owner, _ in run.said[ROUTING]}
    assert told >= {(replica, worker) for replica in replicas for worker in ends_ms}


def test_who_is_gone_is_lost_after_its_lease(run: Run) -> None:
    """In both streams, ten seconds later; it says nothing after its end."""
    for stream in (KV, LOAD):
        lost = {owner: at_ms for at_ms, owner, event in run.said[stream] if isinstance(event, WorkerLost)}
        assert len(lost) >= 3
        for at_ms, owner, event in run.said[stream]:
            if owner in lost and not isinstance(event, WorkerLost):
                assert at_ms <= lost[owner] - 10_000
        for owner in lost.keys() & run.ends_ms.keys():
            assert lost[owner] - 10_000 == pytest.approx(run.ends_ms[owner], abs=11)  # said with others within 10 ms


def test_another_takes_its_place(tmp_path: Path) -> None:
    """Half a minute later, under a new id and with an empty cache; it serves. By `kv`: so few requests would wait for
    nobody under `time`, which keeps to full caches then."""
    run = Run(tmp_path / "log", replace(OPTIONS, routing=RoutingSettings(policy="kv", decode_weight_m=1000)))
    joined = [(at_ms, owner, event) for at_ms, owner, event in run.said[KV] if isinstance(event, WorkerJoined)]
    new = [(at_ms, owner, event) for at_ms, owner, event in joined if at_ms]

    assert [event.name for _, _, event in joined[:4]] == [f"worker-{place}" for place in range(4)]
    assert new
    lost = {owner: at_ms for at_ms, owner, event in run.said[KV] if isinstance(event, WorkerLost)}
    names = {owner: event.name for _, owner, event in joined}
    served = {event.worker for _, _, event in run.said[ROUTING] if isinstance(event, RequestRouted)}
    for at_ms, owner, event in new:
        assert [at_ms - 20_000] == [lost[other] for other in lost if names[other] == event.name]
        assert owner in served


def test_an_answer_waits_for_a_worker_but_not_for_ever(tmp_path: Path) -> None:
    """Where the only one ends: what was held for it is refused then, what was begun is given up after five seconds, and
    what comes meanwhile is refused at once."""
    options = Options(workers=1, engine=ENGINE, failures_per_hour=600, seed=3)
    served = simulate(options, families(100, every_us=60_000, output_tokens=300), archive=tmp_path / "log").served
    refused = {e.request: e for _, _, e in said(tmp_path / "log", ROUTING) if isinstance(e, RequestRejected)}

    failed = {each.id: each for each in served if each.first_us < 0}
    assert 0 < len(failed) < len(served)
    assert refused.keys() == failed.keys()
    assert {each.worker for each in failed.values()} == {-1}
    begun = {each.id: each for each in failed.values() if each.output_tokens}
    assert begun
    assert {each.attempts for each in begun.values()} == {2}
    assert min(each.end_us for each in begun.values()) == max(each.end_us for each in begun.values())
    assert min(each.end_us - each.routed_us for each in begun.values()) > 5_000_000
    late = [each for each in failed.values() if each.attempts == 1]
    held = [each for each in late if each.end_us > each.arrival_us]
    assert 0 < len(held) < len(late)
    (ended_us,) = {each.end_us for each in held}
    assert {each.end_us - ended_us for each in begun.values()} == {5_000_000}
    assert max(each.arrival_us for each in held) < ended_us
    assert min(each.arrival_us for each in late if each not in held) > ended_us
    assert {(refused[name].status, refused[name].reason) for name in begun} == {(500, "no_workers")}
    assert {(refused[each.id].status, refused[each.id].reason) for each in late} == {(503, "no_workers")}

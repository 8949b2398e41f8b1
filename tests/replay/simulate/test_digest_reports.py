"""Simulated replicas and live ones publish their digests by one machine: a change in it alters both alike."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from actors.consistency import digest_exchange
from actors.consistency.digest_exchange_shell import DigestExchangeShell
from core.clock import ManualClock
from core.events import ReplicaReported
from core.ids import ReplicaId
from core.machine import TICK
from core.subjects import ROUTING
from projections.folds.state import State
from replay.simulate.options import Options
from replay.simulate.simulation import simulate
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from tests.actors.consistency.replicas import Replicas
from tests.replay.simulate.families import ENGINE, families
from tests.replay.simulate.said import said

ARRIVALS = families(120, every_us=250_000)
LASTS_S = 30


def gaps(times_ms: list[int]) -> set[int]:
    """Seconds from one report to the next."""
    assert len(times_ms) > 2
    return {round((later - earlier) / 1000) for earlier, later in pairwise(times_ms)}


def simulated(path: Path) -> list[int]:
    """When one replica of a simulation publishes reports."""
    simulate(Options(workers=2, engine=ENGINE), ARRIVALS, archive=path)
    return [each.at_ms for each in said(path, ROUTING) if isinstance(each.event, ReplicaReported)]


def live() -> list[int]:
    """When the live shell of one replica does."""
    replicas, clock, published = Replicas("a"), ManualClock(1_000_000), list[int]()
    (replica,) = replicas.all

    async def rebuild() -> State:
        raise AssertionError("no mismatch is to be resolved")

    async def replace(_: str) -> None:
        raise AssertionError("no mismatch is to be resolved")

    shell = DigestExchangeShell(
        replica.state,
        lambda _: published.append(clock.now_ms),
        lambda: ReplicaId("a" * 16),
        clock,
        MemoryRegistry(MemoryRegistryStore()),
        rebuild=rebuild,
        replace=replace,
    )
    for _ in range(LASTS_S):
        replicas.work(1)
        replica.pull()
        clock.advance(1000)
        shell.feed(TICK)
    return published


async def test_replicas_report_as_often_as_the_machine_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as often, live and simulated, if the machine says so."""
    assert gaps(live()) == gaps(simulated(tmp_path / "usual")) == {5}
    monkeypatch.setattr(digest_exchange, "REPORT_EVERY_MS", 10_000)
    assert gaps(live()) == gaps(simulated(tmp_path / "seldom")) == {10}

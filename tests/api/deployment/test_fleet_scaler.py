"""The hand of a planner in `contrail up`: targets carried out on real processes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.planning.fleet_target import ACKNOWLEDGED_KEY, TARGET_KEY, FleetAcknowledgement, FleetTarget
from api.config.data_folder import DataFolder
from api.deployment.fleet_scaler import FleetScaler
from api.deployment.managed_process import ManagedProcess
from api.deployment.process_specs import ProcessSpec
from api.deployment.supervisor import Supervisor
from core.errors import CallerError
from projections.scaling.scale_settings import ScaleSettings
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from tests.api.deployment.test_supervisor import LISTENS
from tests.fixtures.eventually import eventually

SERVE = "import time; time.sleep(60)"
LINGER = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: time.sleep(1) or exit(0)); time.sleep(60)"
"""A worker whose requests take a second to hand over."""


class Fleet:
    """Workers of the group `decode`, of which none is started at first."""

    def __init__(self, folder: Path, least: int = 1) -> None:
        self.data = DataFolder(folder)
        self.data.make()
        self.told: list[str] = []
        self.made: list[int] = []
        self.drained_by_then: list[str] = []
        """Workers that still drained when the last one was made."""
        self.workers: list[ManagedProcess] = []
        self.beside: list[ManagedProcess] = []
        self.program = SERVE
        self.serving: set[str] = set()
        """Workers that answer that they are ready."""
        self.fault = ""
        self.store = MemoryRegistryStore()
        self.supervisor = Supervisor(self.told.append)
        settings = ScaleSettings(min=least, max=3)
        report, beside = self.told.append, self.beside
        self.scaler = FleetScaler("decode", settings, self.workers, beside, self.supervisor, self.make, report)

    def make(self, number: int) -> ManagedProcess:
        if self.fault:
            raise CallerError(self.fault)
        self.made.append(number)
        self.drained_by_then = [part.name for part in self.beside]
        name = f"decode-{number}"
        program = LISTENS if name in self.serving else self.program
        command = (sys.executable, "-c", program, str(self.data.path), name)
        return ManagedProcess(ProcessSpec(name=name, kind="test", what="", command=command), self.data, 5)

    def target(self, workers: int, decision: int, fence: int = 1, group: str = "decode") -> None:
        self.store.put(TARGET_KEY, FleetTarget(fence, decision, group, workers).encode())

    @property
    def answer(self) -> FleetAcknowledgement | None:
        found = self.store.find(ACKNOWLEDGED_KEY)
        return None if found is None or found.value is None else FleetAcknowledgement.parse(found.value)

    async def answers(self, *answer: object) -> None:
        await eventually(lambda: self.answer == FleetAcknowledgement(*answer), f"{answer}, not {self.answer}")  # type: ignore[arg-type]

    @property
    def names(self) -> list[str]:
        return [part.name for part in self.workers if part.running]

    async def has(self, *names: str) -> None:
        await eventually(lambda: self.names == list(names) and not self.beside, f"{names}, not {self.names}")


@asynccontextmanager
async def fleet_of(folder: Path, least: int) -> AsyncIterator[Fleet]:
    """Its targets are followed."""
    fleet = Fleet(folder, least)
    await fleet.scaler.follow(MemoryRegistry(fleet.store))
    yield fleet
    await fleet.scaler.stop()
    parts = [*fleet.workers, *fleet.beside]
    for part in fleet.workers:
        await fleet.supervisor.release(part)
    for part in parts:
        await part.kill()


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with fleet_of(tmp_path, 1) as fleet:
        yield fleet


async def test_the_fleet_follows_its_target(fleet: Fleet) -> None:
    """The highest number goes first, and is used again."""
    fleet.target(3, 1)
    await fleet.has("decode-0", "decode-1", "decode-2")
    fleet.target(1, 2)
    await fleet.has("decode-0")
    fleet.target(2, 3)
    await fleet.has("decode-0", "decode-1")
    assert fleet.made == [0, 1, 2, 1]
    assert fleet.told[0] == "decode-0 is started: the planner wants 3"
    assert "decode-2 drains: the planner wants 1" in fleet.told


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (100, 3)])
async def test_a_target_stays_within_the_bounds_of_the_file(fleet: Fleet, asked: int, given: int) -> None:
    """Whatever stands in the registry."""
    fleet.target(asked, 1)
    await fleet.has(*(f"decode-{number}" for number in range(given)))


async def test_a_fleet_ends_at_zero_and_begins_again(tmp_path: Path) -> None:
    """Where the file lets it. The first worker is drained as any other, and its number is used again."""
    async with fleet_of(tmp_path, 0) as fleet:
        fleet.target(1, 1)
        await fleet.has("decode-0")
        fleet.target(0, 2)
        await fleet.has()
        await fleet.answers(1, 2, 0)
        fleet.target(1, 3)
        await fleet.has("decode-0")
        assert fleet.made == [0, 0]


async def test_older_targets_are_not_followed(fleet: Fleet) -> None:
    """Those of a planner that has lost its lead, those of an earlier decision, and those of another group."""
    fleet.target(2, 10, fence=5)
    fleet.target(3, 11, fence=4)
    fleet.target(3, 9, fence=5)
    fleet.target(3, 12, fence=6, group="other")
    fleet.store.put(TARGET_KEY, b"no target")
    await fleet.has("decode-0", "decode-1")
    assert fleet.scaler.goal == 2


async def test_a_registry_that_lost_its_data_counts_anew(fleet: Fleet) -> None:
    """The fleet stays as it is until there is a target again."""
    fleet.target(1, 10, fence=5)
    await fleet.has("decode-0")
    fleet.store.delete(TARGET_KEY)
    assert fleet.names == ["decode-0"]
    fleet.target(2, 1, fence=1)
    await fleet.has("decode-0", "decode-1")


async def test_a_worker_that_cannot_be_started_is_tried_again(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fault is told."""
    monkeypatch.setattr("api.deployment.fleet_scaler.RETRY_S", 0.01)
    fleet.fault = "no port is free"
    fleet.target(1, 1)
    await eventually(lambda: len(fleet.told) > 2, "some tries")
    assert fleet.told[0] == "the fleet cannot be scaled now: no port is free"
    await fleet.answers(1, 1, 0, "no port is free")
    fleet.fault = ""
    await fleet.has("decode-0")
    await fleet.answers(1, 1, 1)


async def test_a_number_is_free_when_its_worker_is_gone(fleet: Fleet) -> None:
    """At `max`, a start waits for the drain before it: a worker keeps its port and its devices until then."""
    fleet.program = LINGER
    fleet.target(3, 1)
    await fleet.has("decode-0", "decode-1", "decode-2")
    fleet.target(2, 2)
    await eventually(lambda: len(fleet.beside) == 1, "a drain")
    (drained,) = fleet.beside
    fleet.target(3, 3)
    await fleet.has("decode-0", "decode-1", "decode-2")
    assert not drained.running
    assert fleet.made == [0, 1, 2, 2]
    assert not fleet.drained_by_then


async def test_workers_that_do_not_serve_go_first(fleet: Fleet) -> None:
    """Among these, and among the others, the highest number does: a worker that dies again and again keeps no place of
    one that serves."""
    fleet.serving = {"decode-0", "decode-2"}
    fleet.target(3, 1)
    await fleet.has("decode-0", "decode-1", "decode-2")
    await eventually(
        lambda: all(part.announcement for part in fleet.workers if part.name in fleet.serving), "listeners"
    )
    fleet.target(2, 2)
    await fleet.has("decode-0", "decode-2")
    fleet.target(1, 3)
    await fleet.has("decode-0")


async def test_no_worker_is_changed_while_others_are_exchanged(fleet: Fleet) -> None:
    """A rolling restart holds the lock."""
    async with fleet.supervisor.changing:
        fleet.target(1, 1)
        await eventually(lambda: fleet.scaler.goal == 1, "the target")
        assert not fleet.made
    await fleet.has("decode-0")

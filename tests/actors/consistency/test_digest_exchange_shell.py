"""The live shell: what it asks of the registry and of the log for one machine, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from actors.consistency.digest_exchange import RETRY_MS, FoldReplaced, ReportRead
from actors.consistency.digest_exchange_shell import CLAIM, DigestExchangeShell
from core.clock import ManualClock
from core.errors import Unavailable
from core.events import DivergenceFound, Event
from core.ids import ReplicaId
from core.machine import TICK
from projections.folds.state import State
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from tests.actors.consistency.replicas import Replicas
from tests.actors.consistency.test_digest_exchange import GHOST, forged
from tests.fixtures.eventually import eventually

ME = ReplicaId("a" * 16)


class Live:
    """One shell over a fold that another replica disputes."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.registry = MemoryRegistry(MemoryRegistryStore())
        self.published: list[Event] = []
        self.errors: list[Exception] = []
        """Raised by the next rebuilds, in this order."""
        self.rebuilds = 0
        self.replaced: list[str] = []
        replicas = Replicas("a")
        (self.replica,) = replicas.all
        replicas.work(3)
        self.replica.pull()
        self.shell = DigestExchangeShell(
            self.replica.state,
            self.published.append,
            lambda: ME,
            self.clock,
            self.registry,
            rebuild=self._rebuild,
            replace=self._replace,
        )
        self.running = asyncio.create_task(self.shell.run())

    @property
    def verdicts(self) -> list[str]:
        return [event.verdict for event in self.published if isinstance(event, DivergenceFound)]

    def accuse(self) -> None:
        self.shell.feed(ReportRead(GHOST, forged(self.replica)))

    def later(self, seconds: float = 1) -> None:
        self.clock.advance(round(seconds * 1000))
        self.shell.feed(TICK)

    async def claims(self) -> int:
        return len(await self.registry.get(CLAIM))

    async def _rebuild(self) -> State:
        self.rebuilds += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.replica._fold()

    async def _replace(self, reason: str) -> None:
        self.replaced.append(reason)
        self.replica.state.become(self.replica._fold())
        self.shell.feed(FoldReplaced())


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    live = Live()
    yield live
    live.running.cancel()
    await asyncio.wait([live.running])
    await live.shell.stop()


async def _claimed(live: Live) -> None:
    live.later()
    while not await live.claims():
        await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_a_wrong_fold_is_replaced(live: Live) -> None:
    """The claim is taken, the log folded beside and then in place of the wrong fold, and the claim released."""
    live.replica.corrupt()
    live.accuse()
    await _claimed(live)
    live.later()
    await eventually(lambda: live.verdicts, "a verdict")
    assert (live.rebuilds, live.verdicts) == (1, ["replaced"])
    assert [reason.partition(":")[0] for reason in live.replaced] == ["wrong at kv_0"]
    await asyncio.sleep(0)
    assert await live.claims() == 0
    assert live.shell.describe()["rebuilt"] == 1


@pytest.mark.parametrize(("error", "defect"), [(Unavailable("away"), False), (KeyError("defect"), True)])
async def test_a_rebuild_that_fails_is_tried_again(
    live: Live, error: Exception, defect: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after a defect, which is logged with its place; the claim is released meanwhile."""
    live.errors = [error]
    live.accuse()
    await _claimed(live)
    live.later()
    await eventually(lambda: live.rebuilds == 1, "a try")
    await asyncio.sleep(0)
    assert (await live.claims(), live.verdicts) == (0, [])
    (record,) = [record for record in caplog.records if "failed, trying again" in record.getMessage()]
    assert (record.levelno, bool(record.exc_info)) == (logging.WARNING, defect)
    live.later(RETRY_MS / 1000)
    await _claimed(live)
    live.later()
    await eventually(lambda: live.verdicts == ["confirmed"], "a verdict")
    assert live.rebuilds == 2


async def test_stopping_releases_the_claim(live: Live) -> None:
    """A replica that stops leaves the claim to others, and hears and publishes nothing any more."""
    live.accuse()
    await _claimed(live)
    live.running.cancel()
    await asyncio.wait([live.running])
    await live.shell.stop()
    assert await live.claims() == 0
    published = len(live.published)
    for _ in range(10):
        live.later()
        await asyncio.sleep(0)
    assert (live.rebuilds, len(live.published)) == (0, published)


async def test_reports_go_on_by_themselves() -> None:
    """The first report is published when the shell runs; no event is needed for it."""
    live = Live()
    await eventually(lambda: live.published, "a report")
    live.running.cancel()
    await asyncio.wait([live.running])
    await live.shell.stop()

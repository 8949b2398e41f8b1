"""How far a fold is behind, and that a stream that is away hides nothing of the others."""

from __future__ import annotations

import logging

import pytest

from core.clock import ManualClock
from core.errors import Unavailable
from core.ids import StreamName, StreamSeq
from core.subjects import LOAD, ROUTING
from projections.folds.state import State
from projections.runner.fold_status import FoldLag
from streams.log import StreamState
from streams.memory.memory_log import MemoryLog
from tests.projections.facts import load, worker_id
from tests.projections.speaker import CHAIN_KEY, Speaker


class Partly(MemoryLog):
    """A log of which some streams cannot be asked."""

    def __init__(self) -> None:
        super().__init__("test", ManualClock(1))
        self.gone: set[StreamName] = set()

    async def state(self, stream: StreamName) -> StreamState:
        if stream in self.gone:
            raise Unavailable(f"{stream} has no leader")
        return await super().state(stream)


async def lagging() -> tuple[Partly, FoldLag]:
    log, state = Partly(), State(CHAIN_KEY)
    await log.ensure([LOAD, ROUTING])
    for stream in (LOAD, ROUTING):
        state.open(stream, (await log.state(stream)).epoch)
    return log, FoldLag(log, state)


async def test_one_stream_that_is_away_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The others are measured, it keeps its last number, and it is said once that it is away."""
    log, lag = await lagging()
    await lag.refresh([LOAD, ROUTING])
    log.gone.add(ROUTING)
    speaker = Speaker(LOAD, worker_id(1))
    for number in range(5):
        said = speaker.say(load(number))
        await log.append(LOAD, said.subject, said.payload, f"m{number}", StreamSeq(number))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await lag.refresh([LOAD, ROUTING])
    assert lag.events == {LOAD: 5, ROUTING: 0}
    assert lag.away == {ROUTING}
    assert [record.message.split(",")[0] for record in caplog.records] == ["stream routing is away"]
    log.gone.clear()
    await lag.refresh([LOAD, ROUTING])
    assert not lag.away


async def test_all_of_them_away_is_said() -> None:
    """Nothing is known then, and nothing changes."""
    log, lag = await lagging()
    log.gone |= {LOAD, ROUTING}
    with pytest.raises(Unavailable):
        await lag.refresh([LOAD, ROUTING])
    assert lag.events == {}

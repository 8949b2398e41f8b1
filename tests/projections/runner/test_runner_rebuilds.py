"""The runner folds anew beside the live state: which goes on serving, loses nothing, and is then replaced as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from core.block_spans import single
from core.errors import Unavailable
from core.ids import StreamName, StreamSeq, WorkerId
from core.subjects import LOAD, ROUTING, kv_stream
from projections.folds.snapshot import encode
from projections.folds.state import Applied, State
from projections.runner import rebuild as rebuild_module
from projections.runner import runner as runner_module
from projections.runner.rebuild import RecordBuffer
from projections.runner.runner import OWN_RECORDS_KEPT, Runner
from streams.log import Record, StreamState
from tests.fixtures.eventually import eventually
from tests.projections.facts import joined, load, routed, stored
from tests.projections.made_log import KV, A, B, MadeLog, R, made
from tests.projections.speaker import CHAIN_KEY


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come often, so that tests wait little."""
    monkeypatch.setattr(runner_module, "RETRY_S", 0.01)
    monkeypatch.setattr(runner_module, "MEASURE_EVERY_S", 0.01)


class Running:
    """A runner with what it told."""

    def __init__(self, it: MadeLog, mine: str) -> None:
        self.applied: list[Applied] = []
        self.became = 0
        self.runner = Runner(
            it.log,
            State(CHAIN_KEY),
            self.applied.append,
            store=it.store,
            is_mine=lambda owner: owner == mine,
            on_became=self._on_became,
        )
        self.state = self.runner.state

    def _on_became(self) -> None:
        self.became += 1


@asynccontextmanager
async def running(it: MadeLog, *, mine: str = "", caught_up: bool = True) -> AsyncIterator[Running]:
    found = Running(it, mine)
    found.runner.start()
    try:
        if caught_up:
            await eventually(lambda: found.runner.caught_up, "catch-up")
        yield found
    finally:
        await found.runner.stop()


async def agree(it: MadeLog, found: Running) -> None:
    """The live state is the fold of the whole log."""
    whole = await it.folded()
    await eventually(lambda: found.state.cursor == whole.cursor and found.state.digest == whole.digest, "agreement")
    assert encode(found.state) == encode(whole)


def during_reads(it: MadeLog, act: Callable[[int], Awaitable[None]]) -> None:
    """Before each record that a rebuild reads, `act` is called with how many were read so far."""
    before, count = it.log.read, 0

    async def read(stream: StreamName, start: StreamSeq) -> AsyncIterator[Record]:
        nonlocal count
        async for record in before(stream, start):
            if stream in (KV, LOAD, ROUTING):
                await act(count)
                count += 1
            yield record

    it.log.read = read  # type: ignore[method-assign]


async def test_it_starts_from_a_snapshot() -> None:
    """Says from which, and tails from there."""
    it = await made()
    manifest = await it.snapshot()
    await it.grow()
    async with running(it) as found:
        assert (found.runner.started_from, found.runner.rebuilds, found.runner.refused) == (manifest.id, 0, [])
        assert (found.applied, found.became) == ([], 1)
        await agree(it, found)
        await it.grow(1)
        await agree(it, found)
        assert len(found.applied) == 3


async def test_own_records_that_a_rebuild_folded_first_are_told() -> None:
    """What was appended while the start's rebuild read is not tailed any more; nobody else's is told."""
    it = await made()
    said = False

    async def append_once(_: int) -> None:
        nonlocal said
        if not said:
            said = True
            await it.say(ROUTING, R, routed("mine", A))
            await it.say(ROUTING, "dd" * 8, routed("of another", A))

    during_reads(it, append_once)
    async with running(it, mine=R) as found:
        assert {applied.owner for applied in found.applied} == {R}
        assert [applied.seq for applied in found.applied if applied.stream == ROUTING] == [1, 2]
        await agree(it, found)
    assert OWN_RECORDS_KEPT > 0


async def test_a_history_that_was_replaced_serves_until_it_is_folded_anew() -> None:
    """Readers of the state see the old one or the new one, never a part; other streams go on meanwhile."""
    it = await made()
    seen: list[tuple[int, int]] = []
    async with running(it) as found:

        async def refresh(_: int) -> None:
            seen.append((len(found.state.alive()), found.runner.rebuilds))
            await it.say(LOAD, B, load(len(seen)))

        during_reads(it, refresh)
        it.log.remake(KV)
        for worker in (A, B):
            it.speaker(KV, worker).n_next = 0
            it.speaker(KV, worker).head = bytes(16)
        await it.say(KV, A, joined("a again"), stored(7))
        await eventually(lambda: found.runner.rebuilds and found.runner.caught_up, "the new fold")
        assert set(seen) == {(2, 0)}
        assert [member.joined.name for member in found.state.alive() if member.joined] == ["a again"]
        assert (found.runner.resets, found.became) == (1, 2)
        await it.say(KV, A, stored(8))
        await agree(it, found)
        assert found.state.index.held(WorkerId(A)) == {7, 8}


@pytest.mark.parametrize("fault", ["cut", "restored", "deleted", "rewritten"])
async def test_it_agrees_with_the_log_whatever_became_of_it(fault: str) -> None:
    """Rolled back, put back to a copy and grown again, a message deleted or changed: the log's own fold is taken."""
    it = await made()
    await it.snapshot()
    async with running(it) as found:
        copy = it.log.copy()
        await it.grow(4)
        await agree(it, found)
        if fault == "cut":
            it.log.cut(KV, StreamSeq(3))
        elif fault == "restored":
            it.log.restore(copy)
            await it.say(KV, B, stored(70))
        elif fault == "deleted":
            it.log.delete(KV, (await it.log.state(KV)).last_seq)
        else:
            it.log.rewrite(KV, (await it.log.state(KV)).last_seq, b"damaged")
        await eventually(lambda: found.runner.rebuilds, "a new fold")
        await agree(it, found)


async def test_messages_that_were_cut_off_and_are_back_are_folded() -> None:
    """The store was put back to a copy while the stream's end stayed. Before, workers without a message since the start
    of the process were not there until they restated themselves."""
    it = await made()
    copy, end = it.log.copy(), (await it.log.state(KV)).last_seq
    it.log.expire(KV, end)
    async with running(it) as found:
        alive = len(found.state.alive())
        it.log.restore(copy)
        await eventually(lambda: len(found.state.alive()) > alive, "all workers")
        await agree(it, found)
        assert (found.runner.resets, found.runner.rebuilds) == (0, 1)


async def test_messages_that_the_log_counts_and_cannot_serve_cost_one_rebuild(caplog: pytest.LogCaptureFixture) -> None:
    it = await made()
    it.log.expire(KV, StreamSeq(3))
    state = it.log.state

    async def counted(stream: StreamName) -> StreamState:
        found = await state(stream)
        return found._replace(first_seq=StreamSeq(2)) if stream == KV else found

    async with running(it) as found:
        it.log.state = counted  # type: ignore[method-assign]
        await eventually(lambda: found.runner.rebuilds, "a new fold")
        await asyncio.sleep(10 * runner_module.MEASURE_EVERY_S)
        assert found.runner.rebuilds == 1
    assert "begins at 2 again, and was folded from 3 on" in caplog.text


async def test_a_rebuild_on_demand_mends_the_live_state() -> None:
    """What somebody changed behind its back is gone; records that came meanwhile are in it, and were told once."""
    it = await made()
    async with running(it) as found:

        async def grow(_: int) -> None:
            await it.grow(1)

        during_reads(it, grow)
        found.state.index.store(WorkerId(A), "device", single([999]))
        await found.runner.rebuild("told to")
        assert (found.runner.rebuilds, 999 in found.state.index.held(WorkerId(A))) == (1, False)
        await agree(it, found)
        told = [(applied.stream, applied.seq) for applied in found.applied]
        assert len(told) == len(set(told))
        assert max(seq for stream, seq in told if stream == KV) == found.state.cursor[KV].seq


async def test_rebuilds_asked_for_at_once_are_one() -> None:
    """One that is asked for while another runs begins after it."""
    it = await made()
    async with running(it) as found:
        await asyncio.gather(*(found.runner.rebuild(f"reason {number}") for number in range(5)))
        assert found.runner.rebuilds == 1
        later: list[asyncio.Task[None]] = []

        async def ask(count: int) -> None:
            if not count:
                later.append(asyncio.create_task(found.runner.rebuild("later")))
                await asyncio.sleep(0)

        during_reads(it, ask)
        await found.runner.rebuild("first")
        await later[0]
        assert found.runner.rebuilds == 3


async def test_too_many_arrivals_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, and nothing is held without a bound."""
    monkeypatch.setattr(rebuild_module, "BUFFERED_RECORDS_MAX", 4)
    it = await made()
    async with running(it) as found:

        async def flood(count: int) -> None:
            if count < 3:
                await it.grow(5)
                await asyncio.sleep(0.01)

        during_reads(it, flood)
        await found.runner.rebuild("told to")
        await agree(it, found)


async def test_a_log_that_goes_away_in_the_middle_is_waited_for() -> None:
    """The last known state serves, and the rebuild is made when the log is back."""
    it = await made()
    async with running(it) as found:

        async def go(count: int) -> None:
            if count == 1:
                it.log.away = True

        during_reads(it, go)
        asked = asyncio.create_task(found.runner.rebuild("told to"))
        await eventually(lambda: it.log.away, "the log is away")
        await asyncio.sleep(0.03)
        assert (asked.done(), len(found.state.alive()), found.runner.rebuilding) == (False, 2, False)
        it.log.away = False
        await asked
        await agree(it, found)


async def test_a_history_replaced_during_a_rebuild_voids_it() -> None:
    """What is taken over was begun after the last replacement: nobody ever sees a fold of a history that is gone."""
    it = await made()
    async with running(it) as found:
        taken: list[int] = []
        found.runner._on_became = lambda: taken.append(found.state.cursor[KV].epoch)
        before = (await it.log.state(KV)).epoch

        async def remake(count: int) -> None:
            if count == 2:  # kv_0 was read already
                it.log.remake(KV)
                await asyncio.sleep(0.01)

        during_reads(it, remake)
        await found.runner.rebuild("told to")
        assert before not in taken
        await agree(it, found)


async def test_who_gives_up_waiting_stops_nothing() -> None:
    """A cancelled caller; and after the runner stopped nobody waits for ever."""
    it = await made()
    async with running(it) as found:
        asked = asyncio.create_task(found.runner.rebuild("told to"))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        await found.runner.rebuild("again")
        await agree(it, found)
        it.log.away = True
        waiting = asyncio.create_task(found.runner.rebuild("while it is away"))
        await asyncio.sleep(0.02)
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    with pytest.raises(Unavailable, match="stopped"):
        await found.runner.rebuild("too late")


async def test_a_stream_that_appears_later_is_followed() -> None:
    """Also while a rebuild is made."""
    it = await made()
    later = kv_stream(1)
    async with running(it) as found:

        async def make(count: int) -> None:
            if not count:
                await it.log.ensure([later])
                await it.say(later, "77" * 8, joined("c"))

        during_reads(it, make)
        await found.runner.rebuild("told to")
        await it.say(later, "77" * 8, stored(1))
        await agree(it, found)
        assert len(found.state.alive()) == 3


async def test_history_replaced_between_rebuild_and_tail_is_noticed() -> None:
    """The stream is not followed on a fold that it does not bear out."""
    it = await made()
    before, failed = it.log.tail, False

    async def fail_once(stream: StreamName, *rest: object, **more: object) -> object:
        nonlocal failed
        if stream == KV and not failed:
            failed = True
            it.log.rewrite(KV, StreamSeq(2), b"another")
            raise Unavailable("just now")
        return await before(stream, *rest, **more)  # type: ignore[arg-type]

    it.log.tail = fail_once  # type: ignore[method-assign, assignment]
    async with running(it) as found:
        await eventually(lambda: found.runner.rebuilds, "a new fold")
        await agree(it, found)


async def test_gaps_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """With whose messages are missing, and where; a fold that finds the same gap again says nothing."""
    it = await made()
    async with running(it) as found:
        for _ in range(2):
            it.speaker(KV, A).say(stored(1))
        await it.say(KV, A, stored(2))
        await eventually(lambda: found.runner.gaps == 1, "the gap")
        await found.runner.rebuild("told to")
        assert found.runner.gaps == 1
        assert caplog.text.count(f"messages 1 to 2 of worker {A} are missing before kv_0:3") == 1


async def test_lag_is_told_in_time_and_messages() -> None:
    """By the log's own clock: how much older the oldest message not folded is than the newest; 0 when level."""
    it = await made()
    async with running(it) as found:
        assert (found.runner.lag_events, found.runner.lag_ms) == (0, 0)
        for tail in found.runner._tails.values():
            await tail.stop()
        await it.grow(2)
        await eventually(lambda: found.runner.lag_events == 6, "the lag")
        await eventually(lambda: found.runner.lag_ms == 5000, f"not {found.runner.lag_ms}")
        assert repr(found.runner).endswith("lag 6>")


async def test_the_rate_is_measured() -> None:
    """Messages folded per second between two looks."""
    it = await made()
    async with running(it) as found:
        await it.grow(5)
        await eventually(lambda: found.runner.events_per_s > 0, "a rate")
        await eventually(lambda: found.runner.events_per_s == 0, "silence")


def test_arrivals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by bytes; one more lets all of them go."""
    for name, value in (("BUFFERED_RECORDS_MAX", 3), ("BUFFERED_BYTES_MAX", 30)):
        with monkeypatch.context() as patched:
            patched.setattr(rebuild_module, name, value)
            held = RecordBuffer()
            record = Record(KV, StreamSeq(1), 0, "s", bytes(10))
            for _ in range(3):
                held.add(record)
            assert (len(held), held.overflowed) == (3, False)
            held.add(record)
            held.add(record)
            assert (len(held), held.overflowed, held.take()) == (0, True, None)
            held.restart()
            held.add(record)
            assert (len(held), held.overflowed, held.take()) == (1, False, record)
            held.add(record)
            held.forget(LOAD)
            assert repr(held) == "<RecordBuffer 1 records, 10 bytes>"
            held.forget(KV)
            assert len(held) == 0

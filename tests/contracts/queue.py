"""The rules of `streams.log.Queue`, for every implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from core.errors import Unavailable
from core.ids import StreamSeq
from core.subjects import JOBS, answered_token, asked_token, asked_wildcard, subject
from streams.log import Delivery, EventLog, Queue, QueueLimits

NAME = "prefill"
ACK_WAIT_S = 0.3
QUICK = QueueLimits(ack_wait_s=ACK_WAIT_S, deliveries_max=2, pending_max=4)
SOON_S = 5.0
"""Longer than anything takes that does come."""
NEVER_S = 0.1
"""Long enough to see that nothing comes."""


class QueueContract:
    """Subclasses give `log` (its stream `jobs` exists and is empty) and `break_off`."""

    @pytest.fixture
    async def log(self) -> EventLog:
        raise NotImplementedError

    @pytest.fixture
    def break_off(self) -> Callable[[], Awaitable[None]]:
        """Makes the log unreachable."""
        raise NotImplementedError

    async def open(self, log: EventLog, limits: QueueLimits = QUICK) -> Queue:
        return await log.queue(JOBS, NAME, asked_wildcard(log.namespace), limits)  # type: ignore[attr-defined]

    async def ask(self, log: EventLog, *payloads: str, token: str = asked_token("d0")) -> list[StreamSeq]:
        """Messages of one source, each after the one before."""
        written = subject(log.namespace, JOBS, token)  # type: ignore[attr-defined]
        end = await log.last(JOBS, written)
        seqs = [StreamSeq(0) if end is None else end.seq]
        for payload in payloads:
            message_id = f"{token}:{seqs[-1]}:{payload}"
            seqs.append(await log.append(JOBS, written, payload.encode(), message_id, seqs[-1]))
        return seqs[1:]

    async def test_oldest_first(self, log: EventLog) -> None:
        """Messages come in the order of the log, whoever wrote them, each as it stands there."""
        queue = await self.open(log)
        await self.ask(log, "a")
        await self.ask(log, "b", token=asked_token("d1"))
        await self.ask(log, "c")
        taken = [await got(queue) for _ in range(3)]
        assert said(taken) == [("a", 1), ("b", 1), ("c", 1)]
        assert [each.record for each in taken] == [await log.at(JOBS, StreamSeq(seq)) for seq in (1, 2, 3)]
        for each in taken:
            await each.done()

    async def test_one_of_many(self, log: EventLog) -> None:
        """Each message goes to one of those that ask, and each of them gets one."""
        one, two = await self.open(log), await self.open(log)
        waiting = [asyncio.create_task(got(queue)) for queue in (one, two)]
        await asyncio.sleep(0.02)
        await self.ask(log, "a", "b")
        taken = await asyncio.gather(*waiting)
        assert sorted(said(taken)) == [("a", 1), ("b", 1)]
        for each in taken:
            await each.done()
        await asyncio.sleep(ACK_WAIT_S + NEVER_S)
        assert await one.next(NEVER_S) is None
        assert await two.next(NEVER_S) is None

    async def test_nobody_speaks(self, log: EventLog) -> None:
        """A message that nobody speaks for comes again after `ack_wait_s`, to anybody, and says that it does."""
        one, two = await self.open(log), await self.open(log)
        await self.ask(log, "a", "b")
        first = await got(one)
        second = await got(one)
        await second.done()
        begun_s = now_s()
        again = await got(two)
        assert said([again]) == [("a", 2)]
        assert 0.5 * ACK_WAIT_S < now_s() - begun_s < 3 * ACK_WAIT_S
        assert again.record == first.record
        await again.done()

    async def test_working(self, log: EventLog) -> None:
        """Who says that it works on a message keeps it, for as long as it says so."""
        one, two = await self.open(log), await self.open(log)
        await self.ask(log, "a")
        taken = await got(one)
        for _ in range(5):
            assert await two.next(0.4 * ACK_WAIT_S) is None
            await taken.working()
        again = await got(two)
        assert said([again]) == [("a", 2)]
        await again.done()

    async def test_again(self, log: EventLog) -> None:
        """A message that is handed back comes again: at once, or not before the delay is over."""
        one, two = await self.open(log), await self.open(log)
        await self.ask(log, "a", "b")
        taken = await got(one)
        await taken.again()
        taken = await got(two)
        assert said([taken]) == [("a", 2)]
        begun_s = now_s()
        await taken.again(0.2)
        other = await got(one)
        assert said([other]) == [("b", 1)]
        await other.done()
        taken = await got(one)
        assert said([taken]) == [("a", 3)]
        assert now_s() - begun_s > 0.19
        await taken.done()

    async def test_deliveries_max(self, log: EventLog) -> None:
        """It is handed out `deliveries_max` times to be done and once more to be given up, and then no more."""
        queue = await self.open(log)
        await self.ask(log, "a")
        for number in (1, 2):
            taken = await got(queue)
            assert taken.number == number
            await taken.again()
        last = await got(queue)
        assert last.number == QUICK.deliveries_max + 1
        assert await queue.next(ACK_WAIT_S + NEVER_S) is None
        await self.ask(log, "b")
        assert said([await got(queue)]) == [("b", 1)]

    async def test_pending_max(self, log: EventLog) -> None:
        """No more than `pending_max` are handed out and not acknowledged; then the next ones come."""
        patient = QUICK._replace(ack_wait_s=SOON_S)
        one, two = await self.open(log, patient), await self.open(log, patient)
        await self.ask(log, *map(str, range(6)))
        taken = [await got(queue) for queue in (one, two, one, two)]
        assert await one.next(NEVER_S) is None
        waiting = asyncio.create_task(got(one))
        await asyncio.sleep(0.02)
        await taken[2].done()
        assert said([await waiting]) == [("4", 1)]
        assert await two.next(NEVER_S) is None

    async def test_other_subjects(self, log: EventLog) -> None:
        """What the wildcard does not name is not of the queue."""
        queue = await self.open(log)
        await self.ask(log, "x", "y", token=answered_token("p0"))
        await self.ask(log, "a")
        await self.ask(log, "z", token=answered_token("p0"))
        taken = await got(queue)
        assert (said([taken]), taken.record.seq) == ([("a", 1)], 3)
        await taken.done()
        assert await queue.next(NEVER_S) is None

    async def test_the_history_stays(self, log: EventLog) -> None:
        """To acknowledge a message takes nothing from the stream."""
        queue = await self.open(log)
        await self.ask(log, "a", "b")
        for _ in range(2):
            await (await got(queue)).done()
        assert [record.payload async for record in log.read(JOBS, StreamSeq(1))] == [b"a", b"b"]
        assert (await log.state(JOBS)).messages == 2

    async def test_begins_at_the_end(self, log: EventLog) -> None:
        """A new queue has what comes from now on; one that was there goes on where it was, whoever opens it."""
        await self.ask(log, "before")
        first = await self.open(log)
        await self.ask(log, "a", "b")
        await (await got(first)).done()
        await first.close()
        second = await self.open(log)
        taken = await got(second)
        assert said([taken]) == [("b", 1)]
        await taken.done()

    async def test_two_open_at_once(self, log: EventLog) -> None:
        """They share one queue, and the bounds of whoever was first; another name is another queue."""
        many = await asyncio.gather(*(self.open(log, QUICK._replace(pending_max=n)) for n in (1, 1, 2, 3)))
        other = await log.queue(JOBS, "other", asked_wildcard(log.namespace), QUICK)  # type: ignore[attr-defined]
        await self.ask(log, "a", "b")
        for payload in ("a", "b"):
            taken = [each for each in await asyncio.gather(*(queue.next(0.2) for queue in many)) if each is not None]
            assert said(taken) in ([(payload, 1)], [("a", 1), ("b", 1)], [("b", 1), ("a", 1)])
            for each in taken:
                await each.done()
            if len(taken) == 2:
                break
        assert said([await got(other), await got(other)]) == [("a", 1), ("b", 1)]

    async def test_time_out(self, log: EventLog) -> None:
        """None comes when the time is over, and soon; without time, what waits is given."""
        queue = await self.open(log)
        for wait_s in (0.0, 0.005, 0.2):
            begun_s = now_s()
            assert await queue.next(wait_s) is None
            assert wait_s * 0.95 <= now_s() - begun_s < wait_s + 0.5
        await self.ask(log, "a", "b")
        taken = await queue.next(0.0)
        assert taken is not None
        assert said([taken, await got(queue)]) == [("a", 1), ("b", 1)]

    async def test_cancelled(self, log: EventLog) -> None:
        """A `next` that was cancelled takes nothing: what comes is there for the next one, or for another."""
        one, two = await self.open(log), await self.open(log)
        seqs = []
        for number in range(20):
            waiting = asyncio.create_task(one.next(SOON_S))
            await asyncio.sleep(0.001 * (number % 3))
            asking = asyncio.create_task(self.ask(log, str(number)))
            await asyncio.sleep(0.0002 * (number % 5))
            waiting.cancel()
            [found] = await asyncio.gather(waiting, return_exceptions=True)
            await asking
            begun_s = now_s()
            taken = found if not isinstance(found, BaseException) else await got(two if number % 2 else one)
            assert taken is not None
            assert now_s() - begun_s < 0.6 * ACK_WAIT_S, "it was not handed back"
            seqs.append(taken.record.seq)
            await taken.done()
        assert seqs == list(range(1, 21))

    async def test_close(self, log: EventLog) -> None:
        """What was handed to a queue that is closed goes to others, soon; nothing more is given by it."""
        patient = QUICK._replace(ack_wait_s=SOON_S)
        one, two = await self.open(log, patient), await self.open(log, patient)
        await self.ask(log, "a", "b")
        await got(one)
        await (await got(one)).done()
        waiting = asyncio.create_task(one.next(SOON_S))
        await asyncio.sleep(0.02)
        begun_s = now_s()
        await one.close()
        await one.close()
        with pytest.raises(Unavailable, match="closed"):
            await waiting
        with pytest.raises(Unavailable, match="closed"):
            await one.next(SOON_S)
        assert said([await got(two)]) == [("a", 2)]
        assert now_s() - begun_s < 0.5 * SOON_S

    async def test_away(self, log: EventLog, break_off: Callable[[], Awaitable[None]]) -> None:
        """Without the log every call says so at once, one that waits too."""
        queue = await self.open(log)
        await self.ask(log, "a")
        taken = await got(queue)
        waiting = asyncio.create_task(queue.next(SOON_S))
        await asyncio.sleep(0.02)
        begun_s = now_s()
        await break_off()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: waiting,
            lambda: queue.next(SOON_S),
            taken.done,
            taken.working,
            taken.again,
            lambda: self.open(log),
        ]
        for call in calls:
            with pytest.raises(Unavailable):
                await call()
        assert now_s() - begun_s < 2.0


async def got(queue: Queue) -> Delivery:
    """What the queue gives, soon."""
    found = await queue.next(SOON_S)
    assert found is not None, "nothing came"
    return found


def said(taken: list[Delivery]) -> list[tuple[str, int]]:
    """Payload and number of each."""
    return [(each.record.payload.decode(), each.number) for each in taken]


def now_s() -> float:
    return asyncio.get_running_loop().time()

"""The queue of prefill jobs in virtual time, as the broker's: who gets which message, and how often."""

from __future__ import annotations

from core.ids import WorkerId
from replay.simulate.simulated_prefill_role import ACK_WAIT_US, SimulatedDelivery, SimulatedPrefillQueue
from replay.simulate.virtual_time import Agenda
from streams.log import QUEUE_LIMITS

REQUESTER = WorkerId("decode")


class Consumer:
    """Keeps what it gets."""

    def __init__(self, name: str, agenda: Agenda) -> None:
        self.id = WorkerId(name)
        self.got: list[tuple[int, str, int]] = []
        """Time, job and number."""
        self.last: SimulatedDelivery | None = None
        self._agenda = agenda

    def deliver(self, delivery: SimulatedDelivery) -> None:
        self.got.append((self._agenda.now_us, delivery.job, delivery.number))
        self.last = delivery


def test_the_oldest_job_goes_to_the_worker_that_has_waited_longest() -> None:
    agenda = Agenda()
    queue, first, second = SimulatedPrefillQueue(agenda), Consumer("first", agenda), Consumer("second", agenda)
    for consumer in (first, second):
        queue.take(consumer)
    for job in ("a", "b", "c", "d"):
        queue.put(job, REQUESTER)
    queue.take(second)
    assert [job for _, job, _ in first.got] == ["a"]
    assert [job for _, job, _ in second.got] == ["b", "c"]


def test_a_message_that_is_not_settled_comes_again_ahead_of_all_others() -> None:
    """Kept alive, it comes later; acknowledged, never."""
    agenda = Agenda()
    queue, consumer = SimulatedPrefillQueue(agenda), Consumer("it", agenda)
    for job in ("a", "b"):
        queue.put(job, REQUESTER)
    queue.take(consumer)
    assert consumer.last is not None
    agenda.put(1000, lambda: queue.postpone(kept))
    kept = consumer.last
    while agenda.advance():
        pass
    queue.take(consumer)
    assert consumer.got == [(0, "a", 1), (ACK_WAIT_US + 1000, "a", 2)]
    queue.acknowledge(kept)
    queue.take(consumer)
    assert consumer.last is not kept
    queue.acknowledge(consumer.last)
    assert not agenda.advance()


def test_a_message_is_given_up_after_so_many_times() -> None:
    """Once more than it may be handed out, so that its last reader can say that it is given up."""
    agenda = Agenda()
    queue, consumer = SimulatedPrefillQueue(agenda), Consumer("it", agenda)
    queue.put("a", REQUESTER)
    queue.take(consumer)
    while agenda.advance():
        queue.take(consumer)
    assert [number for _, _, number in consumer.got] == list(range(1, QUEUE_LIMITS.deliveries_max + 2))
    queue.leave(consumer)
    queue.put("b", REQUESTER)
    assert len(consumer.got) == QUEUE_LIMITS.deliveries_max + 1

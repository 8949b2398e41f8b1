"""SimulatedPrefillQueue: the broker's queue of prefill jobs in virtual time.

As the live one: jobs go oldest first to the prefill worker that has waited longest. A message that is neither
acknowledged nor kept alive is handed out again, ahead of all others.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Protocol

from core.ids import WorkerId
from replay.simulate.virtual_time import Agenda
from streams.log import QUEUE_LIMITS

ACK_WAIT_US = round(QUEUE_LIMITS.ack_wait_s * 1_000_000)


class JobConsumer(Protocol):
    """A prefill worker that asked for a job."""

    id: WorkerId

    def deliver(self, delivery: SimulatedDelivery) -> None:
        """It has this message now."""


class SimulatedDelivery:
    """One job's message."""

    __slots__ = ("job", "number", "requester", "timer")

    def __init__(self, job: str, requester: WorkerId) -> None:
        self.job = job
        self.requester = requester
        self.number = 0
        """How often it was handed out."""
        self.timer = 0
        """The number in the agenda of when it is handed out again."""

    def __repr__(self) -> str:
        return f"<SimulatedDelivery of {self.job}, handed out {self.number} times>"


class SimulatedPrefillQueue:
    """Messages that wait, and prefill workers that do."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._waiting: deque[SimulatedDelivery] = deque()
        self._consumers: dict[WorkerId, JobConsumer] = {}
        """Those that asked for a job, in the order in which they did."""

    def __repr__(self) -> str:
        return f"<SimulatedPrefillQueue {len(self._waiting)} jobs and {len(self._consumers)} workers wait>"

    def put(self, job: str, requester: WorkerId) -> None:
        """The message is in the queue, behind all others."""
        self._add(SimulatedDelivery(job, requester))

    def take(self, consumer: JobConsumer) -> None:
        """The consumer has the oldest message, or waits for one."""
        self._consumers[consumer.id] = consumer
        self._hand_out()

    def leave(self, consumer: JobConsumer) -> None:
        """The consumer has ended; its messages are handed out again when their time is over."""
        self._consumers.pop(consumer.id, None)

    def acknowledge(self, delivery: SimulatedDelivery) -> None:
        """The message is handed out no more."""
        self._agenda.cancel(delivery.timer)

    def postpone(self, delivery: SimulatedDelivery, delay_us: int = ACK_WAIT_US) -> None:
        """The message is handed out again after the delay."""
        self._agenda.cancel(delivery.timer)
        delivery.timer = self._agenda.put(self._agenda.now_us + delay_us, partial(self._add, delivery))

    def _add(self, delivery: SimulatedDelivery) -> None:
        if delivery.number > QUEUE_LIMITS.deliveries_max:
            return
        if delivery.number:
            self._waiting.appendleft(delivery)
        else:
            self._waiting.append(delivery)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._consumers:
            delivery, consumer = self._waiting.popleft(), self._consumers.pop(next(iter(self._consumers)))
            delivery.number += 1
            self.postpone(delivery)
            consumer.deliver(delivery)

"""The durable consumer that a queue's workers share at the broker: made when it is missing, where it should begin."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from core.ids import Epoch, StreamSeq
from streams.jetstream_connection import Connection
from streams.jetstream_errors import err_code
from streams.log import StreamState
from streams.queue_limits import QueueLimits

logger = logging.getLogger(__name__)

WAITING_MAX = 1024
"""Requests for messages that the broker holds at once, of all workers together."""

INACTIVE_S = 24 * 3600
"""The broker forgets a queue that nobody asks for so long: no orphan stays of a model that is served no more."""

_EXISTS = {10013, 10148}
"""What making a consumer is refused with if there is one of that name with another configuration."""
_NS_PER_S = 1_000_000_000
_SETTLED = ("ack_wait", "max_deliver", "max_ack_pending", "filter_subject")
"""What the first to open settles for all."""


class Consumer:
    """See the module's text. `make` may be called as often as one likes."""

    def __init__(
        self,
        connection: Connection,
        broker_stream: str,
        name: str,
        subjects: str,
        limits: QueueLimits,
        state: Callable[[], Awaitable[StreamState]],
    ) -> None:
        self.ack_wait_s = limits.ack_wait_s
        """As it is settled, once the consumer was made."""
        self.next_subject = f"$JS.API.CONSUMER.MSG.NEXT.{broker_stream}.{name}"
        self._connection = connection
        self._stream = broker_stream
        self._name = name
        self._state = state
        self._epoch: Epoch | None = None
        self._next = 1
        """What stands before was handed out, as far as we know."""
        self._told = False
        self._config: dict[str, Any] = {
            "durable_name": name,
            "name": name,
            "filter_subject": subjects,
            "ack_policy": "explicit",
            "ack_wait": int(limits.ack_wait_s * _NS_PER_S),
            "max_deliver": limits.deliveries_max + 1,
            "max_ack_pending": limits.pending_max,
            "max_waiting": WAITING_MAX,
            "inactive_threshold": INACTIVE_S * _NS_PER_S,
            "replay_policy": "instant",
            "mem_storage": False,
        }

    def __repr__(self) -> str:
        return f"<Consumer {self._name} of {self._stream}, next {self._next}>"

    async def make(self) -> None:
        """It is there. One that was deleted begins behind the last message that we know of: what others were handed
        since comes again, and what they had not done comes no more. Raises Unavailable or Refused."""
        state = await self._state()
        if self._epoch not in {None, state.epoch} or state.last_seq < self._next - 1:
            logger.warning("history of %s was replaced under the queue %s", self._stream, self._name)
            self._next = state.first_seq
        begin: dict[str, Any] = {"deliver_policy": "new"}
        if self._epoch is not None:
            begin = {"deliver_policy": "by_start_sequence", "opt_start_seq": max(self._next, 1)}
        found = await self._found_or_made(self._config | begin)
        if self._epoch is None:
            self._next = int(found["delivered"]["stream_seq"]) + 1
        self._epoch = state.epoch
        self._settle(found["config"])

    def handed_out(self, seq: StreamSeq) -> None:
        """The broker is at that message, or past it."""
        self._next = max(self._next, seq + 1)

    async def _found_or_made(self, config: dict[str, Any]) -> dict[str, Any]:
        what = f"queue {self._name}"
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        create = f"$JS.API.CONSUMER.CREATE.{self._stream}.{self._name}"
        answer = await self._connection.request(create, body, what)
        if err_code(answer) in _EXISTS:
            answer = await self._connection.request(f"$JS.API.CONSUMER.INFO.{self._stream}.{self._name}", None, what)
        self._connection.check(answer, what)
        return answer

    def _settle(self, config: dict[str, Any]) -> None:
        self.ack_wait_s = config["ack_wait"] / _NS_PER_S
        other = [key for key in _SETTLED if config.get(key) != self._config[key]]
        if other and not self._told:
            self._told = True
            logger.info("queue %s exists with another %s than asked for; it keeps it", self._name, ", ".join(other))

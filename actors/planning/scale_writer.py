"""ScaleWriter: the end of the scale stream, to which one planner at a time appends.

All planners of a deployment continue one chain, in which each append names the last message. So the log itself refuses
a planner whose successor has written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing

from core.clock import Clock
from core.codec import CHAIN_START, decode_message, digest, encode_planned, newest_generation
from core.errors import Corrupt, PeerError, Unavailable, WrongSequence
from core.events.scale import ScaleEvent
from core.ids import SourceId, StreamSeq, new_id
from core.keys import DeploymentKey
from core.subjects import SCALE, subject
from projections.scaling.fleet_fold import FleetFold
from streams.log import EventLog

PLANNER = "planner"
"""Owner of the subject in the scale stream, and the source there."""
RETRY_S = 0.5
"""Pause before a message is offered again."""
APPEND_MAX_S = 20.0
"""A message that the log has not acknowledged in this time is given up, and with it the lead."""

_logger = logging.getLogger(__name__)


class PlannerSuperseded(PeerError):
    """Another planner has written."""


class ScaleWriter:
    """Reads the stream to its end, then appends there. One task uses it."""

    def __init__(self, log: EventLog, namespace: str, key: DeploymentKey, clock: Clock) -> None:
        self._log = log
        self._subject = subject(namespace, SCALE, PLANNER)
        self._chain_key = key.chain_key
        self._clock = clock
        self._life = new_id()
        """The broker takes a message with a known id for a repetition, so the ids of two planners must differ."""
        self._n, self._head, self._last_seq = 0, CHAIN_START, StreamSeq(0)

    def __repr__(self) -> str:
        return f"<ScaleWriter behind {self._last_seq}>"

    async def read(self) -> FleetFold:
        """The fold of the whole stream; the writer stands at its end. Some 40 us a message of CPU time.

        Corrupt if a message does not follow the one before it: then nothing may be decided from the stream.
        """
        fold, is_first = FleetFold(), True
        async with aclosing(self._log.read(SCALE, StreamSeq(1))) as records:  # type: ignore[type-var]
            async for record in records:
                message = decode_message(record.payload)
                if not is_first and (message.n, message.prev) != (self._n, self._head):
                    raise Corrupt(f"message {record.seq} of the scale stream does not follow the one before it")
                is_first = False
                self._n, self._head = message.n + 1, digest(record.payload, self._chain_key)
                self._last_seq = record.seq
                for event in message.events:
                    fold.apply(event)
        return fold

    async def append(self, events: Sequence[ScaleEvent]) -> StreamSeq:
        """The log has the events, as one message. PlannerSuperseded if another planner wrote before. Unavailable if it
        is not known within APPEND_MAX_S; then the writer is of no use any more."""
        payload = encode_planned(
            SourceId(PLANNER), self._n, self._head, self._clock.wall_ms(), events, newest_generation(self._chain_key)
        )
        try:
            async with asyncio.timeout(APPEND_MAX_S):
                seq = await self._offer(payload)
        except TimeoutError as error:
            raise Unavailable(f"the log has not taken a message within {APPEND_MAX_S:g} s") from error
        self._n, self._head, self._last_seq = self._n + 1, digest(payload, self._chain_key), seq
        return seq

    async def _offer(self, payload: bytes) -> StreamSeq:
        while True:
            try:
                return await self._log.append(SCALE, self._subject, payload, f"{self._life}:{self._n}", self._last_seq)
            except WrongSequence as error:
                last = await self._log.last(SCALE, self._subject)
                if last is not None and last.payload == payload:
                    return last.seq  # an earlier try was stored
                raise PlannerSuperseded("another planner has written to the scale stream") from error
            except Unavailable as error:
                _logger.warning("the log is away, a message of the planner is offered again: %s", error)
                await asyncio.sleep(RETRY_S)

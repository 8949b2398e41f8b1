"""LogHeads: the newest message of each stream, kept in the registry, and compared with the log.

1. The registry is not part of the log: a head that is kept there shows a rollback of the log's store, also one that was
   made while every process was stopped.
2. Every replica compares the kept heads with the log when it starts, every few seconds, and when it ends. Then it keeps
   the heads of its own fold instead, if the log bears them out and they are newer.
3. A loss is kept beside the heads, so that all replicas and `contrail doctor` name the same losses. A replica that
   learns of one logs it and restates itself with it as the reason, so that the log has it too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from core.clock import Clock
from core.codec import digest
from core.errors import PeerError
from core.events.routing import LOST_HISTORY, MADE_ANEW, ROLLED_BACK_TEXT
from core.ids import StreamName, StreamSeq
from projections.folds.state import State
from streams.log import DELETED, REMADE, ROLLED_BACK, EventLog, Extents, StreamState
from streams.registry import Registry

HEADS_KEY = "log/heads"
KEEP_EVERY_S = 5.0
"""Least time between two writes of all replicas together."""
CONFIRM_S = 1.0
"""A loss is seen twice, so far apart: a new leader of a stream may answer before it has caught up."""
STEP_S = 30.0
"""Bound of one comparison."""
LAST_S = 3.0
"""Bound of the last one."""
LOSSES_KEPT = 16
"""The newest losses are kept …"""
LOSSES_KEPT_MS = 7 * 86_400_000
"""… for so long."""
RETAINED_SHARE = 0.5
"""Below this share of its limits a stream drops nothing by retention."""

_logger = logging.getLogger(__name__)


class StreamHead(msgspec.Struct, frozen=True):
    """The newest message that was seen in one stream."""

    epoch: int
    seq: int
    head: str
    """Digest of the message at that sequence, in hex digits."""
    deleted: int = 0
    """Messages that were missing inside the stream then."""


Heads = Mapping[StreamName, StreamHead]


class LogLoss(msgspec.Struct, frozen=True):
    """History that a stream should have and does not."""

    stream: str
    kind: str
    """`purged`, or one of the kinds that the extent of a stream shows (`streams.log`)."""
    epoch: int
    seq: int
    """The head that was kept when the loss was found."""
    at_ms: int
    """When it was found, by the clock of the replica that found it."""
    text: str
    """One sentence without its full stop."""

    @property
    def key(self) -> tuple[str, str, int, int, str]:
        """Equal for one loss found by two replicas; the text tells how many messages were deleted by then."""
        return self.stream, self.kind, self.epoch, self.seq, self.text


class KeptHeads(msgspec.Struct, frozen=True):
    """The registry's value."""

    streams: dict[StreamName, StreamHead] = {}
    losses: tuple[LogLoss, ...] = ()
    """Oldest first."""
    at_ms: int = 0
    """When it was put, by the clock of the replica that put it."""


_decode = msgspec.json.Decoder(KeptHeads).decode


async def kept_heads(registry: Registry) -> KeptHeads | None:
    """The heads that the registry has; None without any, or if they cannot be read."""
    for change in await registry.get(HEADS_KEY):
        if change.key == HEADS_KEY and change.value is not None:
            try:
                return _decode(change.value)
            except (msgspec.DecodeError, UnicodeDecodeError):
                _logger.warning("the kept heads of the log cannot be read: they are kept anew")
    return None


async def find_losses(
    log: EventLog, chain_key: bytes, states: Extents, heads: Heads, now_ms: int, kept_ms: int
) -> dict[StreamName, LogLoss]:
    """By stream the loss that a head shows, which was kept at `kept_ms`, before the poll that found these states.

    Streams without a state do not exist and are left out: a stream that is made again is a loss."""
    found = dict[StreamName, LogLoss]()
    for stream, head in heads.items():
        if stream not in states:
            continue
        kind, what = await _lost(log, chain_key, stream, states[stream], head, now_ms - kept_ms)
        if kind:
            text = f"{stream} {LOST_HISTORY}: {what}"
            found[stream] = LogLoss(stream=stream, kind=kind, epoch=head.epoch, seq=head.seq, at_ms=now_ms, text=text)
    return found


async def _lost(
    log: EventLog, chain_key: bytes, stream: StreamName, state: StreamState, head: StreamHead, age_ms: int
) -> tuple[str, str]:
    """The kind of the loss and a phrase; both empty for none."""
    kind = state.loss_since(head.epoch, head.seq, head.deleted)
    if kind == REMADE:
        return kind, f"{MADE_ANEW}, all up to {stream}:{head.seq} is gone"
    gone = f"{ROLLED_BACK_TEXT}, its end at {stream}:{head.seq} is gone"
    if kind == ROLLED_BACK:
        return kind, gone
    if state.first_seq > head.seq:
        is_purged = not _may_be_retention(state, age_ms)
        return ("purged", f"all up to {stream}:{head.seq} was purged") if is_purged else ("", "")
    record = await log.at(stream, StreamSeq(head.seq)) if head.seq else None
    if record is not None and digest(record.payload, chain_key).hex() != head.head:
        return ROLLED_BACK, gone  # another stands there by now; the same words, whichever replica looks when
    messages = "1 message was" if state.deleted == 1 else f"{state.deleted} messages were"
    return kind, f"{messages} deleted inside the stream" if kind == DELETED else ""


def _may_be_retention(state: StreamState, age_ms: int) -> bool:
    """True if the stream's own limits may have taken a message that was its end so long ago."""
    by_age = state.age_max_s and age_ms > RETAINED_SHARE * state.age_max_s * 1000
    return bool(by_age or (state.bytes_max and state.bytes > RETAINED_SHARE * state.bytes_max))


class LogHeads:
    """One replica's part in keeping heads; one task runs it."""

    def __init__(
        self,
        log: EventLog,
        poll: Callable[[], Awaitable[Extents]],
        registry: Registry,
        clock: Clock,
        state: State,
        on_loss: Callable[[LogLoss], None],
    ) -> None:
        """`poll` returns the extents of all streams; `on_loss` is called once for each loss that is found while this
        replica runs."""
        self.losses: tuple[LogLoss, ...] = ()
        """All that are kept, oldest first."""
        self._log = log
        self._poll = poll
        self._registry = registry
        self._clock = clock
        self._state = state
        self._on_loss = on_loss
        self._kept = KeptHeads()
        """The heads last read or put: they count while the registry is away or has none."""
        self._known: set[tuple[str, str, int, int, str]] | None = None
        """Losses that `on_loss` heard of, and those that were kept before this replica began; None before the first
        look at the registry."""

    def __repr__(self) -> str:
        return f"<LogHeads {len(self._kept.streams)} streams, {len(self.losses)} losses>"

    def describe(self) -> list[dict[str, Any]]:
        """The losses, for `/state`."""
        return [{"at_ms": it.at_ms, "stream": it.stream, "kind": it.kind, "text": it.text} for it in self.losses]

    async def run(self, every_s: float) -> None:
        """Compares and keeps, for ever."""
        while True:
            await self.step()
            await asyncio.sleep(every_s)

    async def stop(self) -> None:
        """The heads are kept once more, within LAST_S. To be called when `run` has ended."""
        await self.step(is_last=True)

    async def step(self, *, is_last: bool = False) -> None:
        """The kept heads were compared with the log, and newer ones are kept: if it is time, or if it is the last."""
        try:
            async with asyncio.timeout(LAST_S if is_last else STEP_S):
                await self._step(is_last=is_last)
        except (PeerError, TimeoutError) as error:
            _logger.debug("the heads of the log are not compared now: %r", error)

    async def _step(self, *, is_last: bool) -> None:
        kept = await self._read()
        now_ms = self._clock.wall_ms()
        own, states = self._own(), await self._poll()
        lost = await self._find(states, kept.streams, now_ms, kept.at_ms)
        if lost:
            await asyncio.sleep(CONFIRM_S)
            states = await self._poll()
            again = await self._find(states, {name: kept.streams[name] for name in lost}, now_ms, kept.at_ms)
            lost = {name: loss for name, loss in again.items() if lost[name].kind == loss.kind}
        recent = tuple(loss for loss in kept.losses if now_ms - loss.at_ms < LOSSES_KEPT_MS)
        losses = _with_new(recent, lost)
        self._note(losses)
        is_due = lost or is_last or not 0 <= now_ms - kept.at_ms < KEEP_EVERY_S * 1000
        streams = await self._newest(kept, lost, own, states) if is_due else kept.streams
        self._kept = kept
        if (streams, losses) != (kept.streams, kept.losses):
            self._kept = KeptHeads(streams, losses, now_ms)
            await self._registry.put(HEADS_KEY, msgspec.json.encode(self._kept))

    async def _read(self) -> KeptHeads:
        """The registry's heads, or those of this process where the registry has none."""
        try:
            found = await kept_heads(self._registry)
        except PeerError:
            if self._known is None:
                raise
            return self._kept
        if self._known is None:
            self._known = set() if found is None else {loss.key for loss in found.losses}
        return self._kept if found is None else found

    def _note(self, losses: tuple[LogLoss, ...]) -> None:
        assert self._known is not None
        self.losses = losses
        for loss in losses:
            if loss.key not in self._known:
                self._known.add(loss.key)
                _logger.error("%s", loss.text)
                self._on_loss(loss)

    async def _find(self, states: Extents, heads: Heads, now_ms: int, kept_ms: int) -> dict[StreamName, LogLoss]:
        return await find_losses(self._log, self._state.chain_key, states, heads, now_ms, kept_ms)

    async def _newest(
        self, kept: KeptHeads, lost: Mapping[StreamName, LogLoss], own: Heads, states: Extents
    ) -> dict[StreamName, StreamHead]:
        """Per stream the head of this replica's fold, if the log bears it out, or the kept one, if it is newer."""
        own = {name: replace(head, deleted=states[name].deleted) for name, head in own.items() if name in states}
        wrong = await self._find(states, own, 0, 0)
        found = {name: head for name, head in kept.streams.items() if name not in lost}
        for name, head in own.items():
            before = found.get(name)
            if name not in wrong and (before is None or before.epoch != head.epoch or before.seq <= head.seq):
                found[name] = head
        return found

    def _own(self) -> dict[StreamName, StreamHead]:
        """The heads of the fold. Read before a poll, they are not beyond the ends that it finds."""
        points = {stream: (at, self._state.point(stream, at.seq)) for stream, at in self._state.cursor.items()}
        return {
            stream: StreamHead(at.epoch, at.seq, point.head.hex())
            for stream, (at, point) in points.items()
            if point is not None
        }


def _with_new(losses: tuple[LogLoss, ...], lost: Mapping[StreamName, LogLoss]) -> tuple[LogLoss, ...]:
    known = {loss.key for loss in losses}
    return (*losses, *(loss for loss in lost.values() if loss.key not in known))[-LOSSES_KEPT:]

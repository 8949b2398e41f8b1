"""Predicted against real reuse: which blocks made the difference, and the event that was missing or late.

A prediction is the start of the prompt that the chosen worker held by the index, or that it was computing for another
request. It is too high if a removal was unseen, or came before the engine reached the block, or if another request
still computed the block. It is too low if a store was unseen or came later. A difference without any event has its own
verdict. Under `approximate` events play no part, and those of a worker with an assumed cache tell only what was sent
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from core.codec import decode_message
from core.errors import Corrupt
from core.events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheRestated,
    KvEvent,
    PoolLeft,
    PoolLost,
    PromptBase,
    RequestRouted,
    WorkerLeft,
    WorkerLost,
)
from core.events.routing import CACHED_UNKNOWN
from core.ids import COLUMN_WIDTH, StreamName, WorkerId
from core.settings import APPROXIMATE
from core.subjects import ROUTING, is_kv, owner
from projections.folds.in_flight import known_depth
from projections.folds.routing_fold import in_flight
from replay.explain.decision_inputs import DecisionInputs
from replay.explain.explanation import CachePrediction
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt
from streams.log import Record

LATE_MS = 1000
"""An engine's events may reach the log so long after the first token."""
SEARCH_MAX = 65_536
"""Messages read behind the cursor, per kv stream."""


class _CacheEvent(NamedTuple):
    """An event of the chosen worker behind the cursor."""

    stream: StreamName
    seq: int
    time_ms: int
    event: KvEvent


class _Case(NamedTuple):
    recording: Recording
    tried: RequestAttempt
    ground: DecisionInputs
    decided_ms: int

    @property
    def worker(self) -> WorkerId:
        return self.ground.ranked[0].candidate.worker

    def since(self, time_ms: int) -> int:
        """Milliseconds from the decision to that moment of the log."""
        return time_ms - self.decided_ms

    def hash(self, block: int) -> bytes:
        """The hash of a block of the prompt, counted from 0, as events have it."""
        return self.ground.event.hashes[block * COLUMN_WIDTH : (block + 1) * COLUMN_WIDTH]


def check_cache_prediction(
    recording: Recording, tried: RequestAttempt, ground: DecisionInputs, decided_ms: int
) -> CachePrediction:
    """The predicted and the real reuse, and the cause of the difference. Reads the kv streams near the decision."""
    size, event = ground.event.block_size, ground.event
    predicted, real = event.predicted_cached_tokens // size, tried.cached_tokens // size
    if tried.prefilled_seq == 0:
        return CachePrediction(
            predicted_blocks=predicted, real_blocks=0, verdict="no_first_token", text="no first token is in the log"
        )
    if tried.cached_tokens == CACHED_UNKNOWN:
        return CachePrediction(
            predicted_blocks=predicted,
            real_blocks=0,
            verdict="real_unknown",
            text="its engine did not say the real one",
        )
    if tried.cached_tokens == event.predicted_cached_tokens or predicted == real:
        return CachePrediction(
            predicted_blocks=predicted, real_blocks=real, verdict="as_predicted", text="as predicted"
        )
    case = _Case(recording, tried, ground, decided_ms)
    if isinstance(event.base, PromptBase):
        found = _PredictionVerdict("prompt_unknown", "this recording lacks a decision that this one continues")
    else:
        found = _found(case, predicted, real)
    first, count = min(predicted, real), abs(predicted - real)
    return CachePrediction(
        predicted_blocks=predicted,
        real_blocks=real,
        verdict=found.verdict,
        first_block=first,
        blocks=count,
        stream=found.cause.stream if found.cause else ROUTING if found.request else None,
        seq=found.cause.seq if found.cause else found.seq,
        after_decision_ms=case.since(found.cause.time_ms) if found.cause else None,
        request=found.request,
        text=f"{_span(first, count)}: {found.text}",
    )


class _PredictionVerdict(NamedTuple):
    verdict: str
    text: str
    cause: _CacheEvent | None = None
    request: str | None = None
    seq: int | None = None
    """The sequence at which that request was routed."""


def _found(case: _Case, predicted: int, real: int) -> _PredictionVerdict:
    cached = case.ground.ranked[0].candidate.overlap[-1]
    guessed = case.ground.settings.policy == APPROXIMATE or case.worker in case.recording.names.assumed
    if guessed and not cached <= real < predicted:
        if real < predicted:
            return _PredictionVerdict(
                "believed", "they were taken to be cached, because a prompt that begins so was sent there"
            )
        return _PredictionVerdict(
            "believed", "the engine had them, though by what was sent there it had them no more, or never"
        )
    return _too_much(case, predicted, real) if real < predicted else _too_little(case, real)


def _too_much(case: _Case, predicted: int, real: int) -> _PredictionVerdict:
    """The engine took fewer blocks; the first that it did not take shows the cause."""
    cached = case.ground.ranked[0].candidate.overlap[-1]
    if real >= cached:
        return _pending(case, predicted)
    gone = _loss(case, case.hash(real))
    if gone is None:
        return _PredictionVerdict(
            "never_in_log", "the log had them as cached there, and tells of no removal before the first token"
        )
    after, seen = case.since(gone.time_ms), gone.event
    if isinstance(seen, WorkerLeft | WorkerLost | PoolLeft | PoolLost):
        return _PredictionVerdict("ended", f"the worker ended ({seen.reason}), {_when(after)}", gone)
    if isinstance(seen, CacheCleared | CacheRestated):
        how = f"cleared ({seen.reason})" if isinstance(seen, CacheCleared) and seen.reason else "cleared"
        how = how if isinstance(seen, CacheCleared) else "said anew, without them"
        return _PredictionVerdict("cleared", f"the worker's cache was {how}, {_when(after)}", gone)
    if after <= 0:
        return _PredictionVerdict("removed_unseen", f"removed {_when(after)}, and not seen in time", gone)
    return _PredictionVerdict("removed_later", f"removed {_when(after)}, before the engine got to them", gone)


def _too_little(case: _Case, real: int) -> _PredictionVerdict:
    """The engine took more blocks; the last one that it took shows the cause."""
    candidate = case.ground.ranked[0].candidate
    if not candidate.cache_known:
        return _PredictionVerdict(
            "unknown_cache", "its cache was unknown after a gap in its messages, and counted as nothing"
        )
    stored = next((it for it in _behind_cursor(case) if _brings(it.event, case.hash(real - 1))), None)
    if stored is None:
        return _PredictionVerdict(
            "never_in_log", "the engine had them, and the log tells of no store up to the first token"
        )
    after = case.since(stored.time_ms)
    if after <= 0:
        return _PredictionVerdict("stored_unseen", f"stored {_when(after)}, and not seen yet", stored)
    return _PredictionVerdict("stored_later", f"stored {_when(after)}, by another request", stored)


def _pending(case: _Case, predicted: int) -> _PredictionVerdict:
    """Blocks that were counted on because another request was computing them there."""
    shared = _shared(case, predicted)
    if shared is None:
        return _PredictionVerdict(
            "pending", "they were being computed there for another request, and the engine computed them again"
        )
    if shared.prefilled_seq:
        after = case.since(shared.prefilled_ms)
        end = f"its first token came {_when(after)}"
    else:
        end = f"it ended without one: {shared.outcome}" if shared.ended_seq else "it has no first token in the log"
    text = f"request {shared.request} was computing them there ({end}), and the engine computed them again"
    return _PredictionVerdict("pending", text, request=shared.request, seq=shared.seq)


def _shared(case: _Case, depth: int) -> RequestAttempt | None:
    """The newest request being prefilled there, by what the replica saw, that has as much of this prompt's start."""
    read = case.ground.event.cursor.get(ROUTING, (0, 0))[1]
    for other in reversed(case.recording.requests.before(case.tried)):
        if other.replica == case.tried.replica:
            counted = not 0 < other.prefilled_at < case.tried.at
        else:
            counted = other.seq <= read and not 0 < other.prefilled_seq <= read
        if not counted:
            continue
        found = (event for _, event in case.recording.events([other.at]) if isinstance(event, RequestRouted))
        for event in found:  # as the fold has it, which reads no other decision
            if known_depth(in_flight(event), case.ground.request.prompt) >= depth:
                return other
    return None


def _loss(case: _Case, block: bytes) -> _CacheEvent | None:
    """The first event behind the cursor by which the worker has the block no more; None if there is none before it
    stores the block anew."""
    kept = False
    for it in _behind_cursor(case):
        match it.event:
            case BlocksStored() if _holds(it.event.hashes, block):
                return None
            case BlocksRemoved() if _holds(it.event.hashes, block):
                return it
            case CacheCleared() | WorkerLeft() | WorkerLost() | PoolLeft() | PoolLost():
                return it
            case CacheRestated(part=part, parts=parts):
                kept = _holds(it.event.hashes, block) or (kept and part > 0)
                if part == parts - 1 and not kept:
                    return it
            case _:
                pass  # about other blocks
    return None


def _behind_cursor(case: _Case) -> Iterator[_CacheEvent]:
    """The cache events of the worker, and of the pools that it reads, behind the decision's cursor, up to LATE_MS after
    the first token."""
    sources = {case.worker, *(it.source for it in case.ground.pools if it.worker == case.worker)}
    end_ms = case.tried.prefilled_ms + LATE_MS
    for stream in case.recording.streams:
        if not is_kv(stream):
            continue
        start = case.ground.event.cursor.get(stream, (0, 0))[1] + 1
        for record in case.recording.archive.read(stream, start, start + SEARCH_MAX):
            if record.time_ms > end_ms:
                break
            if owner(record.subject) in sources:
                yield from _events(record)


def _events(record: Record) -> Iterator[_CacheEvent]:
    try:
        message = decode_message(record.payload)
    except Corrupt:
        return
    for event in message.events:
        if isinstance(event, KvEvent):
            yield _CacheEvent(record.stream, record.seq, record.time_ms, event)


def _brings(event: KvEvent, block: bytes) -> bool:
    return isinstance(event, BlocksStored | CacheRestated) and _holds(event.hashes, block)


def _holds(column: bytes, block: bytes) -> bool:
    at = column.find(block)
    while at >= 0 and at % COLUMN_WIDTH:
        at = column.find(block, at + 1)
    return at >= 0


def _when(after_ms: int) -> str:
    if after_ms == 0:
        return "as it was decided"
    return f"{abs(after_ms)} ms {'before' if after_ms < 0 else 'after'} the decision"


def _span(first: int, count: int) -> str:
    if count == 1:
        return f"block {first + 1} of the prompt"
    return f"blocks {first + 1} to {first + count} of the prompt"

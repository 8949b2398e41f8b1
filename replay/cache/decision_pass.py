"""DecisionPass: the decisions of a recording in the order of the log, each with the history of blocks before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from core.events import RequestRouted
from core.prompt import HASH_BYTES
from core.subjects import ROUTING
from replay.cache.block_history import BlockHistory, Cause, HistoryReader, kv_streams
from replay.cache.copy_fold import CopyObserver
from replay.cache.holders import HeldDepths, HolderTable
from replay.recording.prompt_columns import BaseFault
from replay.recording.recording import Recording
from replay.recording.request_history import PLACES, RequestAttempt


class PassedDecision(NamedTuple):
    """One decision. The history stands at its place."""

    number: int
    seq: int
    event: RequestRouted
    attempt: RequestAttempt
    hashes: bytes
    """All block hashes of its prompt; empty if the log does not have them."""
    depths: HeldDepths | None
    """None if the table of holders does not have it."""
    cursor: list[int]
    """The last message of each kv stream that its replica had read."""
    now_ms: int
    """The latest time of a routing message so far."""

    @property
    def reusable(self) -> int:
        """Leading blocks of the prompt that an engine can take from its cache: the last token is always computed."""
        return max(0, self.event.prompt_tokens - 1) // self.event.block_size

    @property
    def achieved(self) -> int:
        """Whole blocks that the engine took from its cache, by its own word."""
        return min(max(0, self.attempt.cached_tokens) // self.event.block_size, self.reusable)

    @property
    def is_whole(self) -> bool:
        """True if its prompt and the view of its replica are known."""
        return self.depths is not None and len(self.hashes) >= HASH_BYTES * self.reusable


class DecisionPass:
    """One pass through the log, up to `end` (not included)."""

    def __init__(
        self,
        recording: Recording,
        end: int | None,
        history: BlockHistory,
        holders: HolderTable,
        others: Sequence[CopyObserver] = (),
    ) -> None:
        """The history, and the others, follow the kv streams up to each decision; `holders` has the decisions whose
        cursors are asked about."""
        self._recording = recording
        self._end = end
        self._history = history
        self._holders = holders
        self._streams = kv_streams(recording)
        self._reader = HistoryReader(recording, history, self._streams, others)
        self._epochs = {stream: recording.archive.span(stream).epoch for stream in self._streams}
        self.now_ms = 0
        """The latest time of a routing message so far."""

    def __repr__(self) -> str:
        return f"<DecisionPass at {self.now_ms} ms>"

    def decisions(self) -> Iterator[PassedDecision]:
        """All decisions. A message that is no message of its replica, or came before, has none. When the next one is
        asked for, the prompt of the last one is known as asked for, unless its worker declined it."""
        for frame in self._recording.frames(ROUTING, 1, self._end):
            self.now_ms = max(self.now_ms, frame.time_ms)
            for place, event in enumerate(frame.message.events if frame.message is not None else ()):
                if not isinstance(event, RequestRouted):
                    continue
                number = frame.seq * PLACES + place
                attempt = self._recording.requests.at(number)
                if attempt is None:
                    continue
                column = self._recording.columns.of(frame.seq, place, event)
                hashes = b"" if isinstance(column, BaseFault) else column
                depths, cursor = self._holders.take(number) or (None, self._cursor(event))
                self._history.settle(self._holders.floor)
                self._reader.move(self.now_ms, cursor)
                yield PassedDecision(number, frame.seq, event, attempt, hashes, depths, cursor, self.now_ms)
                if hashes and not attempt.declined:
                    self._history.ask((event.model, event.block_size), hashes)

    def go_on(self, time_ms: int) -> None:
        """Folded is each message of the kv streams that the log stored up to that time."""
        self._reader.move(time_ms + 1, [0] * len(self._streams))

    def _cursor(self, event: RequestRouted) -> list[int]:
        """The places that the replica had read, of streams that were not made anew since."""
        at = [event.cursor.get(stream, (self._epochs[stream], 0)) for stream in self._streams]
        return [
            seq if epoch == self._epochs[stream] else 0 for stream, (epoch, seq) in zip(self._streams, at, strict=True)
        ]


def cause_runs(it: PassedDecision, history: BlockHistory) -> Iterator[tuple[Cause, int]]:
    """The causes of the blocks behind the achieved ones, in the order of the prompt, each with how many blocks in a
    row have it. The decision is whole, and the history stands at its place."""
    at, depths = it.achieved, it.depths
    assert depths is not None
    for depth, cause in (
        (depths.chosen, Cause.EVICTED),
        (depths.usable, Cause.ELSEWHERE),
        (depths.unusable, Cause.LOST),
    ):
        if depth > at:
            yield cause, depth - at
            at = depth
    if rest := it.hashes[HASH_BYTES * at : HASH_BYTES * it.reusable]:
        for cause in history.causes((it.event.model, it.event.block_size), rest, it.cursor):
            yield cause, 1


def cause_counts(it: PassedDecision, history: BlockHistory) -> Counter[Cause]:
    """The same as the number of blocks of each cause."""
    counts: Counter[Cause] = Counter()
    for cause, blocks in cause_runs(it, history):
        counts[cause] += blocks
    return counts

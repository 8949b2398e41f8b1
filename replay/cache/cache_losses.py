"""cache_losses: available and achieved cache hits of a recording, and each block between them by its cause.

The unit is a block of a served attempt's prompt; a hash names the whole prefix up to its block. A block is:

1. achieved, if the engine took it from its cache, by the worker's own word (`RequestPrefilled.cached_tokens`, cut to
   whole blocks);
2. else `evicted`, if the chosen worker held it at the decision's cursor: it was gone when the worker began, or its
   engine did not use it;
3. else `sent elsewhere`, if another worker that could have taken the request held it there;
4. else `worker lost`, if only workers held it that the replica knew as failed, suspected, unconnected or draining;
5. else `replica behind`, if its store stands in the log before the decision and behind its cursor;
6. else by the copy that went last before the cursor: `evicted`, `worker lost`, or `unknown` behind missing messages;
7. else `not yet stored`, if an earlier decision's prompt has it, and no worker had declined that;
8. else `cold`.

A message of a kv stream stands before a decision if the log stored it in an earlier millisecond, or if a decision up to
this one had read it. Each block is judged by itself: one in the middle may be evicted, and one behind it not.

First the decisions are played, each with the view of its replica: what workers held, and which of them it could choose.
Then the log is read once more in its order, for what happened to the blocks that none of them held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from core.event_json import time_text
from core.events import RequestRouted
from core.prompt import HASH_BYTES
from core.subjects import ROUTING
from replay.cache.block_history import BLOCKS_MAX, BlockHistory, Cause, HistoryReader, kv_streams
from replay.cache.cache_report import (
    BY_CAUSE,
    BY_HOUR,
    BY_SESSION,
    BY_TENANT,
    BY_WORKER,
    DECLINED,
    FIELDS,
    NO_TOKEN,
    REMOTE,
    UNDER_WAY,
    UNREAD,
    WORKER_LOST,
    CacheReport,
    CacheSums,
    GroupTable,
    WorstTurn,
)
from replay.cache.holders import HeldDepths, HolderTable
from replay.cache.session_names import SessionNames
from replay.parallel import collector_paused
from replay.playback.playback import Playback
from replay.recording.prompt_columns import BaseFault
from replay.recording.recording import RecordedFrame, Recording
from replay.recording.request_history import PLACES, RequestAttempt
from replay.verify.chain_proof import gaps_of

HOUR_MS = 3_600_000
PROGRESS_EVERY = 256
"""Decisions between two reports of progress."""

Progress = Callable[[int, int], None]
"""Gets the number of decisions done, and of all to be done; each counts twice."""


def cache_losses(
    recording: Recording,
    start: int = 1,
    end: int | None = None,
    *,
    by: str = BY_CAUSE,
    blocks_max: int = BLOCKS_MAX,
    progress: Progress = lambda _done, _of: None,
) -> CacheReport:
    """The report on the attempts with a decision in the routing stream from `start` up to `end` (not included); blocks
    that were stored or asked for before `start` are known. Some 0.2 ms per message of the log. Corrupt if the file is
    damaged."""
    with collector_paused():
        return _CacheRun(recording, start, end, by, blocks_max, progress).report()


class _CacheRun:
    """One question to a recording."""

    def __init__(
        self, recording: Recording, start: int, end: int | None, by: str, blocks_max: int, progress: Progress
    ) -> None:
        self._recording = recording
        self._requests = recording.requests
        self._start, self._end = start, end
        self._blocks_max = blocks_max
        self._progress = progress
        self._gaps = gaps_of(recording)
        self._streams = kv_streams(recording)
        self._holders = HolderTable(self._streams)
        self._history = BlockHistory(len(self._streams), blocks_max)
        self._reader = HistoryReader(recording, self._history, self._streams)
        self._session_names = SessionNames()
        self._groups = GroupTable(by)
        self._apart: Counter[str] = Counter()
        self._first_ms = self._last_ms = 0
        self._now_ms = 0
        """The latest time of a routing message so far."""

    def report(self) -> CacheReport:
        to_play = len(self._requests.span(self._start, self._end))
        of = to_play + len(self._requests.span(1, self._end))
        playback = Playback(self._recording, self._start, self._end, gaps=self._gaps)
        for done in self._holders.read(playback, self._requests):
            if done % PROGRESS_EVERY == 0:
                self._progress(min(done, to_play), of)
        done = to_play
        for frame in self._recording.frames(ROUTING, 1, self._end):
            self._now_ms = max(self._now_ms, frame.time_ms)
            for place, event in enumerate(frame.message.events if frame.message is not None else ()):
                if isinstance(event, RequestRouted):
                    done += self._take(frame, place, event)
                    if done % PROGRESS_EVERY == 0:
                        self._progress(min(done, of), of)
        self._progress(of, of)
        return self._found()

    def _found(self) -> CacheReport:
        starts = self._recording.start
        is_cut = any(starts[stream] for stream in (*self._streams, ROUTING) if stream in starts)
        return CacheReport(
            by=self._groups.by,
            total=self._groups.total,
            rows=self._groups.rows(),
            apart=dict(sorted(self._apart.items())),
            first_ms=self._first_ms,
            last_ms=self._last_ms,
            history_from_ms=self._recording.start_ms if is_cut else 0,
            gaps=len(self._gaps.all),
            blocks_max=self._blocks_max,
            forgotten=self._history.forgotten,
        )

    def _take(self, frame: RecordedFrame, place: int, event: RequestRouted) -> bool:
        """The next decision of the log is judged if it is in the range, and its prompt is known from now on; False if
        its message is no message of its replica, or came before."""
        number = frame.seq * PLACES + place
        attempt = self._requests.at(number)
        if attempt is None:
            return False
        column = self._recording.columns.of(frame.seq, place, event)
        hashes = b"" if isinstance(column, BaseFault) else column
        taken = self._holders.take(number)
        self._history.settle(self._holders.floor)
        cursor = taken[1] if taken is not None else [0] * len(self._streams)
        self._reader.move(self._now_ms, cursor)
        session = self._session_names.name(event, hashes) if self._groups.by == BY_SESSION else ""
        if frame.seq >= self._start:
            if reason := _apart(attempt):
                self._apart[reason] += 1
            elif taken is None or len(hashes) < HASH_BYTES * _reusable(event):
                self._apart[UNREAD] += 1
            else:
                self._judge(attempt, event, hashes, *taken, session)
        if hashes and not attempt.declined:
            self._history.ask((event.model, event.block_size), hashes)
        return True

    def _judge(
        self,
        attempt: RequestAttempt,
        event: RequestRouted,
        hashes: bytes,
        depths: HeldDepths,
        cursor: list[int],
        session: str,
    ) -> None:
        size = event.block_size
        reusable = _reusable(event)
        achieved = min(max(0, attempt.cached_tokens) // size, reusable)
        counts = self._causes(event, hashes[: HASH_BYTES * reusable], achieved, depths, cursor)
        sums = CacheSums(
            attempts=1,
            prompt_tokens=event.prompt_tokens,
            achieved=achieved * size,
            always_computed=event.prompt_tokens - reusable * size,
            **{FIELDS[cause]: blocks * size for cause, blocks in counts.items()},
        )
        turn = WorstTurn(request=attempt.request, attempt=attempt.attempt, seq=attempt.seq, lost=sums.lost)
        self._groups.add(self._group(attempt, session), sums, turn)
        self._first_ms = self._first_ms or self._now_ms
        self._last_ms = self._now_ms

    def _causes(
        self, event: RequestRouted, hashes: bytes, achieved: int, depths: HeldDepths, cursor: list[int]
    ) -> Counter[Cause]:
        """The number of blocks behind the achieved ones, by their cause."""
        counts: Counter[Cause] = Counter()
        at = achieved
        for depth, cause in (
            (depths.chosen, Cause.EVICTED),
            (depths.usable, Cause.ELSEWHERE),
            (depths.unusable, Cause.LOST),
        ):
            if depth > at:
                counts[cause] += depth - at
                at = depth
        if rest := hashes[HASH_BYTES * at :]:
            counts.update(self._history.causes((event.model, event.block_size), rest, cursor))
        return counts

    def _group(self, attempt: RequestAttempt, session: str) -> str:
        by = self._groups.by
        if by == BY_TENANT:
            return attempt.tenant
        if by == BY_WORKER:
            return self._recording.names.worker(attempt.worker)
        return time_text(self._now_ms // HOUR_MS * HOUR_MS) if by == BY_HOUR else session


def _reusable(event: RequestRouted) -> int:
    """Leading blocks of the prompt that an engine can take from its cache: the last token is always computed."""
    return max(0, event.prompt_tokens - 1) // event.block_size


def _apart(attempt: RequestAttempt) -> str:
    """The reason why the attempt is in no sum; empty if it counts. An attempt that goes on with the answer of a lost
    worker has a prompt and a first token of its own, and counts."""
    if attempt.declined:
        return DECLINED
    if attempt.ttft_ms < 0:
        if not attempt.ended_at:
            return UNDER_WAY
        return WORKER_LOST if attempt.outcome == WORKER_LOST else NO_TOKEN
    return REMOTE if attempt.remote else ""

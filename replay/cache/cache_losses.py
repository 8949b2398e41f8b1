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

from array import array
from collections import Counter
from collections.abc import Callable

from core.event_json import time_text
from core.events.routing import CACHED_UNKNOWN
from core.ids import WorkerId
from core.subjects import ROUTING
from replay.cache.block_history import BLOCKS_MAX, BlockHistory, kv_streams
from replay.cache.cache_report import (
    BY_CAUSE,
    BY_HOUR,
    BY_SESSION,
    BY_TENANT,
    BY_WORKER,
    DECLINED,
    DISPLACING,
    FIELDS,
    NO_TOKEN,
    NOT_COUNTED,
    REMOTE,
    UNDER_WAY,
    UNREAD,
    WORKER_LOST,
    CacheReport,
    CacheRow,
    CacheSums,
    DisplacementRemainder,
    GroupTable,
    WorstTurn,
)
from replay.cache.decision_pass import DecisionPass, PassedDecision, cause_counts
from replay.cache.displacement import DisplacedTokens, DisplacementTable
from replay.cache.holders import HolderTable
from replay.cache.session_names import SessionNames
from replay.parallel import collector_paused
from replay.playback.playback import Playback
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt
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
    displaced: bool = True,
    blocks_max: int = BLOCKS_MAX,
    progress: Progress = lambda _done, _of: None,
) -> CacheReport:
    """The report on the attempts with a decision in the routing stream from `start` up to `end` (not included); blocks
    that were stored or asked for before `start` are known. By session and tenant the rows have what they lost to each
    other if `displaced`. Some 0.2 ms per message of the log. Corrupt if the file is damaged."""
    with collector_paused():
        return _CacheRun(recording, start, end, by, blocks_max, progress, displaced=displaced).report()


class _CacheRun:
    """One question to a recording."""

    def __init__(
        self,
        recording: Recording,
        start: int,
        end: int | None,
        by: str,
        blocks_max: int,
        progress: Progress,
        *,
        displaced: bool,
    ) -> None:
        self._recording = recording
        self._requests = recording.requests
        self._start, self._end = start, end
        self._blocks_max = blocks_max
        self._progress = progress
        self._gaps = gaps_of(recording)
        streams = kv_streams(recording)
        self._holders = HolderTable(streams)
        self._history = BlockHistory(len(streams), blocks_max)
        self._displacement = (
            DisplacementTable(self._history.caches, recording.requests) if displaced and by in DISPLACING else None
        )
        others = [self._displacement] if self._displacement is not None else []
        self._pass = DecisionPass(recording, end, self._history, self._holders, others)
        self._session_names = SessionNames()
        self._groups = GroupTable(by)
        self._apart: Counter[str] = Counter()
        self._first_ms = self._last_ms = 0

    def report(self) -> CacheReport:
        to_play = len(self._requests.span(self._start, self._end))
        of = to_play + len(self._requests.span(1, self._end))
        playback = Playback(self._recording, self._start, self._end, gaps=self._gaps)
        for done in self._holders.read(playback, self._requests):
            if done % PROGRESS_EVERY == 0:
                self._progress(min(done, to_play), of)
        for done, each in enumerate(self._pass.decisions(), to_play + 1):
            self._take(each)
            if done % PROGRESS_EVERY == 0:
                self._progress(min(done, of), of)
        self._progress(of, of)
        return self._found()

    def _found(self) -> CacheReport:
        starts = self._recording.start
        is_cut = any(starts[stream] for stream in (*kv_streams(self._recording), ROUTING) if stream in starts)
        rows, total = self._groups.rows(), self._groups.total
        return CacheReport(
            by=self._groups.by,
            total=total,
            rows=rows,
            apart=dict(sorted(self._apart.items())),
            first_ms=self._first_ms,
            last_ms=self._last_ms,
            history_from_ms=self._recording.start_ms if is_cut else 0,
            gaps=len(self._gaps.all),
            blocks_max=self._blocks_max,
            forgotten=self._history.forgotten,
            remainder=None if self._displacement is None else _displaced(self._displacement, total, rows),
        )

    def _take(self, it: PassedDecision) -> None:
        """The next decision of the log is judged if it is in the range."""
        by = self._groups.by
        group = self._session_names.name(it.event, it.hashes) if by == BY_SESSION else self._group(it)
        if it.seq >= self._start:
            if reason := apart_reason(it.attempt):
                self._apart[reason] += 1
            elif not it.is_whole:
                self._apart[UNREAD] += 1
            else:
                self._judge(it, group)
        if self._displacement is not None:
            self._displacement.counts = it.seq >= self._start
            if it.hashes and not it.attempt.declined:
                self._displacement.use(group, WorkerId(it.event.worker), it.number, array("Q", it.hashes).tolist())

    def _judge(self, it: PassedDecision, group: str) -> None:
        attempt, size = it.attempt, it.event.block_size
        sums = CacheSums(
            attempts=1,
            prompt_tokens=it.event.prompt_tokens,
            achieved=it.achieved * size,
            always_computed=it.event.prompt_tokens - it.reusable * size,
            **{FIELDS[cause]: blocks * size for cause, blocks in cause_counts(it, self._history).items()},
        )
        turn = WorstTurn(request=attempt.request, attempt=attempt.attempt, seq=attempt.seq, lost=sums.lost)
        self._groups.add(group, sums, turn)
        self._first_ms = self._first_ms or it.now_ms
        self._last_ms = it.now_ms

    def _group(self, it: PassedDecision) -> str:
        by = self._groups.by
        if by == BY_TENANT:
            return it.attempt.tenant
        if by == BY_WORKER:
            return self._recording.names.worker(it.attempt.worker)
        return time_text(it.now_ms // HOUR_MS * HOUR_MS) if by == BY_HOUR else ""


def _displaced(table: DisplacementTable, total: CacheRow, rows: list[CacheRow]) -> DisplacementRemainder:
    """The sums of displaced tokens are in the total and in the rows; gives the rest."""
    table.finish()
    groups, total.displaced = table.rows(), table.total()
    for row in rows:
        row.displaced = groups.pop(row.name, DisplacedTokens())
    unlisted = DisplacedTokens()
    for each in groups.values():
        unlisted.add(each)
    return DisplacementRemainder(unlisted=unlisted, lost_unowned=table.lost_unowned, forgotten=table.forgotten)


def apart_reason(attempt: RequestAttempt) -> str:
    """The reason why the attempt is in no sum; empty if it counts. An attempt that goes on with the answer of a lost
    worker has a prompt and a first token of its own, and counts."""
    if attempt.declined:
        return DECLINED
    if attempt.ttft_ms < 0:
        if not attempt.ended_at:
            return UNDER_WAY
        return WORKER_LOST if attempt.outcome == WORKER_LOST else NO_TOKEN
    if attempt.remote:
        return REMOTE
    return NOT_COUNTED if attempt.cached_tokens == CACHED_UNKNOWN else ""

"""Runner: keeps a State up to date with the log, and folds it anew beside the live one when it must.

1. State and position are one value (`projections.folds.state`); nothing here holds a position of its own.
2. It begins with a rebuild (`projections.runner.rebuild`), and then tails every stream from where that ended.
3. A stream with a replaced history is folded no further: its last state serves while everything is folded anew,
   and then the new fold takes its place. `rebuild` does the same on demand, and so does a stream that has messages
   again which were cut off when it was folded. Records that come meanwhile are held (`projections.runner.rebuild`), and
   read again from the log if they are too many.
4. The log may go away at any point: each read is tried again, and the last known state serves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from core.codec import digest
from core.errors import Refused, Unavailable
from core.ids import StreamName, StreamSeq
from projections.folds.state import Applied, State, is_folded
from projections.runner.fold_status import FoldLag, GapLog
from projections.runner.rebuild import OnApplied, RebuildResult, RecordBuffer, Slices, fold_on, in_slices, rebuild
from streams.log import EventLog, Record, StreamState, Tail
from streams.snapshot_store import SnapshotStore

RETRY_S = 0.5
"""Between tries while the log cannot be reached."""
MEASURE_EVERY_S = 1.0
"""Between looks at how far behind the fold is, which is also where new kv streams are found."""
LAG_EVENTS_MAX = 1000
"""A replica further behind than this is not ready."""
OWN_RECORDS_KEPT = 4096
"""Records of our own that a rebuild folded first. The newest are enough: each also stands for those before it."""

_logger = logging.getLogger(__name__)


class _RebuildRequest(NamedTuple):
    """A rebuild that somebody wants."""

    reason: str
    done: asyncio.Future[None] | None = None


class Runner:
    """Keeps a State up to date. Owned by one event loop."""

    def __init__(
        self,
        log: EventLog,
        state: State,
        on_applied: Callable[[Applied], None],
        *,
        store: SnapshotStore | None = None,
        is_mine: Callable[[str], bool] = lambda _: False,
        on_became: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_applied` hears of every record that a tail delivered, after it was folded; and, when a rebuild's fold
        took its place, of those that only this fold had, if `is_mine` is true of their subject's owner. `on_became`
        is told when a rebuild's fold took its place."""
        self.state = state
        self._lag = FoldLag(log, state)
        self._gaps = GapLog(state)
        self.resets = 0
        """Streams with a history that was replaced while this process followed them."""
        self.rebuilds = 0
        """Counts new folds that took the live one's place; the one at the start does not count."""
        self.started_from = ""
        """The snapshot that the present fold began with; empty if it is folded from the log alone."""
        self.refused: list[str] = []
        """Why newer snapshots were not used."""
        self._log = log
        self._store = store
        self._on_applied = on_applied
        self._is_mine = is_mine
        self._on_became = on_became
        self._tails: dict[StreamName, Tail] = {}
        self._requested: list[_RebuildRequest] = [_RebuildRequest("the start")]
        self._buffer: RecordBuffer | None = None
        self._replaced: set[StreamName] = set()
        """Streams with a history that was replaced since they were folded."""
        self._earlier: dict[StreamName, tuple[StreamSeq, StreamSeq]] = {}
        """See `FoldLag.earlier`, as it was at the last look."""
        self._void = False
        """True if another history was replaced during a rebuild."""
        self._stopped = False
        self._wake = asyncio.Event()
        self._measured = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Runner {self.state!r}, lag {self.lag_events}>"

    @property
    def lag(self) -> dict[StreamName, int]:
        """Messages not folded yet per stream, by the last look."""
        return self._lag.events

    @property
    def gaps(self) -> int:
        """Gaps in chains that were found since the start, each counted once."""
        return self._gaps.count

    @property
    def lag_events(self) -> int:
        """Messages not folded yet, all streams together."""
        return sum(self.lag.values())

    @property
    def lag_ms(self) -> int:
        """Age difference between the oldest message that is not folded yet and the newest one, by the log's clock; 0 if
        all are folded."""
        return self._lag.ms

    @property
    def events_per_s(self) -> float:
        """Messages folded by the live fold, between the last two looks."""
        return self._lag.events_per_s

    @property
    def caught_up(self) -> bool:
        """The fold was close to the end of the log at the last look."""
        return self._measured.is_set() and self.lag_events <= LAG_EVENTS_MAX

    @property
    def rebuilding(self) -> bool:
        """True while a fold is being made beside the live one."""
        return self._buffer is not None

    def start(self) -> None:
        """From now on the state follows the log; it waits for the log for as long as that takes."""
        self._task = asyncio.create_task(self._run(), name="runner")

    async def stop(self) -> None:
        """Nothing is folded after this returns; callers that wait for a rebuild are cancelled."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for tail in self._tails.values():
            await tail.stop()
        for asked in self._requested:
            if asked.done is not None:
                asked.done.cancel()

    async def rebuild(self, reason: str) -> None:
        """A fold that was begun after this call has taken the live one's place. Several calls at once cost one."""
        if self._stopped:
            raise Unavailable("the runner is stopped: nothing is folded any more")
        done = asyncio.get_running_loop().create_future()
        self._request(reason, done)
        await done

    async def _run(self) -> None:
        while True:
            pause_s = RETRY_S
            self._wake.clear()
            try:
                if self._requested:
                    await self._rebuild()
                followed = await self._follow_all()
                await self._lag.refresh(list(self._tails))
                self._fold_earlier()
                if followed:
                    self._measured.set()
                    pause_s = MEASURE_EVERY_S
            except Unavailable as error:
                _logger.warning("the log is away, the last known state serves: %s", error)
            except Exception:  # by any defect: streams must go on being found, folded and measured
                _logger.exception("the log cannot be followed, trying again")
            await self._pause(pause_s)

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            return

    # --- the live fold -----------------------------------------------------------------------------------------

    async def _follow_all(self) -> bool:
        """Every stream that there is and that we know a fold for is followed; False if one cannot be yet."""
        streams = [stream for stream in await self._log.streams() if is_folded(stream)]
        for stream in streams:
            if stream not in self._tails:
                await self._try_to_follow(stream)
        return all(stream in self._tails for stream in streams)

    async def _try_to_follow(self, stream: StreamName) -> None:
        """Follows one stream. Its failure is logged and tried again; it stops no other stream."""
        try:
            await self._follow(stream)
        except Refused:
            _logger.exception("stream %s cannot be followed, trying again", stream)

    async def _follow(self, stream: StreamName) -> None:
        folded = self.state.open(stream, (await self._log.state(stream)).epoch)
        after = await self._log.at(stream, folded) if folded else None
        if not await self._stands(stream, after):
            self._replace(stream)
            return
        start, reset = StreamSeq(folded + 1), partial(self._on_reset, stream)
        self._tails[stream] = await self._log.tail(stream, start, self._on_record, on_reset=reset, after=after)

    async def _stands(self, stream: StreamName, last: Record | None) -> bool:
        """True if the log still has the history that is folded of the stream; `last` is its message at the cursor."""
        position, held = self.state.cursor[stream], await self._log.state(stream)
        point = self.state.point(stream, position.seq)
        if held.epoch != position.epoch or held.last_seq < position.seq:
            return False
        if point is None or held.first_seq > position.seq:
            return True  # nothing to compare: the chains will tell
        return last is not None and digest(last.payload, self.state.chain_key) == point.head

    def _on_record(self, record: Record) -> None:
        if self._buffer is not None:
            self._buffer.add(record)
        if record.stream in self._replaced:
            return
        self._lag.folded += 1
        applied = self.state.apply(record.stream, record.seq, record.subject, record.payload)
        if self._gaps.seen != self.state.gaps_found:
            self._gaps.refresh()
        if applied is not None:
            self._on_applied(applied)

    def _on_reset(self, stream: StreamName, _now: StreamState) -> None:
        self.resets += 1
        if self._buffer is not None:
            self._buffer.forget(stream)
            self._void = True
        self._replace(stream)

    def _replace(self, stream: StreamName) -> None:
        _logger.error("the history of stream %s was replaced: what is known serves while all is folded again", stream)
        self._replaced.add(stream)
        self._request(f"the history of stream {stream} was replaced")

    def _fold_earlier(self) -> None:
        """A rebuild is requested for each stream that has messages again which were cut off when it was folded; once,
        because a broker may count messages that it cannot serve."""
        before, self._earlier = self._earlier, dict(self._lag.earlier)
        for stream, starts in self._earlier.items():
            if before.get(stream) != starts:
                _logger.error("stream %s begins at %d again, and was folded from %d on", stream, *starts)
                self._request(f"stream {stream} has earlier messages again")

    # --- a fold beside it --------------------------------------------------------------------------------------

    def _request(self, reason: str, done: asyncio.Future[None] | None = None) -> None:
        self._requested.append(_RebuildRequest(reason, done))
        self._wake.set()

    async def _rebuild(self) -> None:
        """A new fold has taken the live one's place; or what was asked is still to be done."""
        asked, self._requested = self._requested, []
        mine: deque[Applied] = deque(maxlen=OWN_RECORDS_KEPT)
        buffer = self._buffer = RecordBuffer()
        self._void = False
        _logger.info("folding the log: %s", "; ".join(dict.fromkeys(each.reason for each in asked)))
        try:
            keep = partial(self._keep_mine, mine)
            rebuilt = await rebuild(self._log, self.state.chain_key, self._store, keep)
            await self._catch_up(rebuilt.state, buffer, keep)
            if not self._void:
                self._take_over(rebuilt, mine)
                _done(asked)
                asked = []
        finally:
            self._buffer = None
            self._requested = asked + self._requested
        if not asked:
            await in_slices(rebuilt.state.index.clearing())  # what was served before

    def _keep_mine(self, mine: deque[Applied], applied: Applied) -> None:
        if self._is_mine(applied.owner) and not self._is_folded(applied):
            mine.append(applied)

    def _is_folded(self, applied: Applied) -> bool:
        """True if the live fold has it."""
        at = self.state.cursor.get(applied.stream)
        return at is not None and applied.seq <= at.seq and applied.stream not in self._replaced

    async def _catch_up(self, state: State, buffer: RecordBuffer, keep: OnApplied) -> None:
        """The new fold has all that the live one has; nothing else has its turn between that and the return."""
        slices = Slices()
        while buffer or buffer.overflowed:
            if buffer.overflowed:
                buffer.restart()
                await fold_on(self._log, state, keep)
                continue
            record = buffer.take()
            assert record is not None
            state.open(record.stream, self.state.cursor[record.stream].epoch)
            applied = state.apply(record.stream, record.seq, record.subject, record.payload)
            if applied is not None:
                keep(applied)
            if slices.over():
                await slices.give_way()

    def _take_over(self, rebuilt: RebuildResult, mine: deque[Applied]) -> None:
        new = [applied for applied in mine if not self._is_folded(applied)]
        for stream in self._tails:
            rebuilt.state.open(stream, self.state.cursor[stream].epoch)  # it may be gone from the log just now
        self.rebuilds += bool(self.state.cursor)
        self.state.become(rebuilt.state)
        self._replaced.clear()
        self.started_from = rebuilt.manifest.id if rebuilt.manifest else ""
        self.refused = rebuilt.refused
        self._gaps.restart()
        for applied in new:
            self._on_applied(applied)
        self._on_became()


def _done(asked: list[_RebuildRequest]) -> None:
    for each in asked:
        if each.done is not None and not each.done.done():
            each.done.set_result(None)

"""LoadFold: the newest load report of each worker that lives."""

from __future__ import annotations

from core.codec import Message
from core.events import LoadReported, UnknownEvent, WorkerLeft, WorkerLost
from core.ids import LOST_SUFFIX, SourceId, WorkerId
from projections.digest import MASK64, mix
from projections.folds.source_fold import Chain, ChainVerdict, MissingMessages, Tombstones, missing_before, stamp


class LoadFold:
    """The fold of the load stream. A report stands alone, so a gap before it makes nothing void."""

    def __init__(self) -> None:
        self.reports: dict[WorkerId, LoadReported] = {}
        self.chains: dict[WorkerId, Chain] = {}
        """Of everybody who said anything and has not ended."""
        self.ended = Tombstones()
        self.unknown_events = 0
        self.incomplete = 0
        self.missing: list[MissingMessages] = []
        self._parts: dict[WorkerId, int] = {}
        self._digest = 0

    def __repr__(self) -> str:
        return f"<LoadFold {len(self.reports)} workers, digest {self._digest:016x}>"

    @property
    def digest(self) -> int:
        return self._digest

    def apply(self, owner: str, message: Message, digest: bytes) -> bool:
        """Folds one message of the worker `owner`."""
        worker = WorkerId(owner)
        if worker in self.ended:
            return False
        if message.source == SourceId(worker):
            return self._apply_own(worker, message, digest)
        if message.source == worker + LOST_SUFFIX:
            return self._apply_lost(worker, message)
        return False

    def restore(self, worker: WorkerId, chain: Chain, report: LoadReported | None) -> None:
        """A part as a snapshot has it is there."""
        self.chains[worker] = chain
        if report is not None:
            self.reports[worker] = report
        self._account(worker)

    def _apply_own(self, worker: WorkerId, message: Message, digest: bytes) -> bool:
        chain = self.chains.get(worker) or self.chains.setdefault(worker, Chain())
        n_next = chain.n_next
        verdict = chain.follow(message, digest)
        if verdict is ChainVerdict.REPEAT:
            return False
        if verdict is ChainVerdict.GAP:
            self.missing.append(missing_before(n_next, message))
        for event in message.events:
            if isinstance(event, LoadReported):
                self.reports[worker] = event
            elif isinstance(event, WorkerLeft):
                self._end(worker, f"left: {event.reason}")
                return True
            elif isinstance(event, UnknownEvent):
                self.unknown_events += 1
        self._account(worker)
        return True

    def _apply_lost(self, worker: WorkerId, message: Message) -> bool:
        for event in message.events:
            if isinstance(event, WorkerLost):
                self._end(worker, f"lost: {event.reason}")
                return True
        return False

    def _account(self, worker: WorkerId) -> None:
        report = self.reports.get(worker)
        reported = (report.running, report.waiting, report.draining) if report else ()
        part = stamp(self.chains[worker], mix(worker, *reported))
        self._digest = (self._digest - self._parts.get(worker, 0) + part) & MASK64
        self._parts[worker] = part

    def _end(self, worker: WorkerId, reason: str) -> None:
        self._digest = (self._digest - self._parts.pop(worker, 0)) & MASK64
        self.reports.pop(worker, None)
        self.chains.pop(worker, None)
        self.ended.add(worker, reason)

"""LoadFold: the newest load report of each worker that lives."""

from __future__ import annotations

import msgspec

from core.codec import Message
from core.events import LoadReported, UnknownEvent, WorkerLeft
from core.ids import WorkerId
from projections.digest import mix
from projections.folds.source_fold import Chain, SourceFold, stamp


class LoadPart(msgspec.Struct):
    """One worker's part; its report stands in `LoadFold.reports`."""

    worker: WorkerId
    chain: Chain = msgspec.field(default_factory=Chain)
    digest: int = 0


REUSE_UNIT, REUSE_STEPS = 1024, 16
"""So many tokens a second are one doubling, and so many steps."""
TURNOVER_STEPS = 64
"""Of a turnover: a whole cache."""


def reuse_of(rate: int) -> int:
    """Reuse of the talks that live on a worker that reports this rate: log2(1 + rate / REUSE_UNIT), in
    sixteenths (REUSE_STEPS), with a straight line between powers of two. So one more talk counts by how many are there,
    and not by how fast they are; and the record takes a byte for it."""
    units = REUSE_UNIT + max(0, rate)
    doublings = units.bit_length() - REUSE_UNIT.bit_length()
    return doublings * REUSE_STEPS + (units * REUSE_STEPS >> doublings) // REUSE_UNIT - REUSE_STEPS


class LoadFold(SourceFold[WorkerId, LoadPart]):
    """The fold of the load stream. A report stands alone, so a gap before it makes nothing void."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: dict[WorkerId, LoadReported] = {}
        self.reuse: dict[WorkerId, int] = {}
        """`reuse_of` the rate of each worker, where it is above 0."""
        self.rates_reported = False
        """True if any worker ever reported a reuse rate."""
        self.turnover: dict[WorkerId, int] = {}
        """The turnover that each worker reports, where it is above 0."""
        self.turnovers_reported = False
        """True if any worker ever reported a turnover."""
        self.watched: dict[WorkerId, int] = {}
        """Workers of which changes are noted (`projections.folds.worker_table`) …"""
        self.changed: dict[WorkerId, None] = {}
        """… and those of them with a change since they were taken."""

    def __repr__(self) -> str:
        return f"<LoadFold {len(self.reports)} workers, digest {self.digest:016x}>"

    @property
    def chains(self) -> dict[WorkerId, Chain]:
        """The chain of each of these workers as far as it was read. O(workers)."""
        return {worker: part.chain for worker, part in self.parts.items()}

    def restore(self, worker: WorkerId, chain: Chain, report: LoadReported | None) -> None:
        """A part as a snapshot has it is there."""
        part = self.parts[worker] = LoadPart(worker, chain)
        if report is not None:
            self._report(worker, report)
        self._account(worker, part)

    def _report(self, worker: WorkerId, report: LoadReported) -> None:
        self.reports[worker] = report
        self.rates_reported |= report.reuse_rate != 0
        if reuse := reuse_of(report.reuse_rate):
            self.reuse[worker] = reuse
        else:
            self.reuse.pop(worker, None)
        self.turnovers_reported |= report.turnover != 0
        if report.turnover:
            self.turnover[worker] = report.turnover
        else:
            self.turnover.pop(worker, None)
        if worker in self.watched:
            self.changed[worker] = None

    def _begin(self, source: WorkerId) -> LoadPart:
        return self.parts.setdefault(source, LoadPart(source))

    def _void(self, part: LoadPart) -> None:
        pass

    def _fold(self, part: LoadPart, message: Message) -> None:
        for event in message.events:
            if isinstance(event, LoadReported):
                self._report(part.worker, event)
            elif isinstance(event, WorkerLeft):
                self._end(part.worker, f"left: {event.reason}")
                return
            elif isinstance(event, UnknownEvent):
                self.unknown_events += 1

    def _weight(self, part: LoadPart) -> int:
        report = self.reports.get(part.worker)
        if report is None:
            return stamp(part.chain, mix(part.worker))
        read: tuple[object, ...] = ()  # what earlier programs did not report is left out, so their logs keep digests
        if report.reuse_rate:
            read = (report.reuse_rate,)
        if report.turnover:
            read = (*read, "turnover", report.turnover)
        return stamp(part.chain, mix(part.worker, report.running, report.waiting, report.draining, *read))

    def _end(self, source: WorkerId, reason: str) -> None:
        self.reuse.pop(source, None)
        self.turnover.pop(source, None)
        if self.reports.pop(source, None) is not None and source in self.watched:
            self.changed[source] = None
        self._bury(source, self.parts.pop(source, None), reason)

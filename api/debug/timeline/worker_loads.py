"""Worker loads: the load reports of workers, thinned to what a screen can show."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from replay.recording.messages import PartialEvent

REPORTS_MAX = 2_000_000
"""Reports kept of all workers together, some 80 MB; beyond it every second one is dropped."""
POINTS_MAX = 4096
"""Most points per worker in one answer: more than a screen has pixels."""


class _WorkerReports:
    """Reports of one worker, in columns."""

    def __init__(self) -> None:
        self.ms = array("q")
        self.running, self.waiting = array("q"), array("q")
        self.used, self.total = array("q"), array("q")

    def thinned(self) -> _WorkerReports:
        """Every second one of them."""
        kept = _WorkerReports()
        for name, column in vars(self).items():
            setattr(kept, name, column[::2])
        return kept


class WorkerLoads:
    """Load reports by worker. One thread appends, others may read."""

    def __init__(self) -> None:
        self._workers: dict[int, _WorkerReports] = {}
        self._kept = 0

    def __repr__(self) -> str:
        return f"<WorkerLoads of {len(self._workers)} workers, {self._kept} reports>"

    def add(self, worker: int, ms: int, event: PartialEvent) -> None:
        """The report is kept."""
        reports = self._workers.get(worker)
        if reports is None:
            reports = self._workers[worker] = _WorkerReports()
        reports.running.append(event.running)
        reports.waiting.append(event.waiting)
        reports.used.append(event.blocks_used)
        reports.total.append(event.blocks_total)
        reports.ms.append(ms)  # last, since readers go by its length
        self._kept += 1
        if self._kept > REPORTS_MAX:
            self._workers = {worker: each.thinned() for worker, each in self._workers.items()}
            self._kept = sum(len(each.ms) for each in self._workers.values())

    def between(self, from_ms: int, to_ms: int, points: int) -> list[dict[str, Any]]:
        """At most `points` points per worker, from its last report before the window to the window's end.

        Each has the highest values of its part of the window, and the time of its last report.
        """
        points = max(1, min(points, POINTS_MAX))
        found = []
        for worker, reports in list(self._workers.items()):
            thinned = _thinned(reports, from_ms, to_ms, points)
            if thinned is not None:
                found.append({"worker": worker, **thinned})
        return found


def _thinned(reports: _WorkerReports, from_ms: int, to_ms: int, points: int) -> dict[str, list[int]] | None:
    columns = [reports.running, reports.waiting, reports.used, reports.total]
    # copies: an array cannot grow while numpy views its memory
    ms = np.frombuffer(reports.ms[:], dtype=np.int64)
    low = max(0, int(np.searchsorted(ms, from_ms, side="right")) - 1)
    high = int(np.searchsorted(ms, to_ms, side="right"))
    if low >= high:
        return None
    ms = ms[low:high]
    part = np.clip((ms - from_ms) * points // max(1, to_ms - from_ms), -1, points)
    starts = np.flatnonzero(np.diff(part, prepend=part[0] - 1))
    ends = np.append(starts[1:], len(ms)) - 1
    running, waiting, used, total = (
        np.maximum.reduceat(np.frombuffer(column[low:high], dtype=np.int64), starts).tolist() for column in columns
    )
    return {
        "ms": ms[ends].tolist(),
        "running": running,
        "waiting": waiting,
        "blocks_used": used,
        "blocks_total": total,
    }

"""CacheView: the report on cache hits of a recording, counted in a thread of its own while the page goes on."""

from __future__ import annotations

import logging
import threading
from typing import Any

import msgspec

from core.errors import ContrailError
from core.keys import DeploymentKey
from replay.cache.cache_losses import cache_losses
from replay.cache.cache_report import CacheReport
from replay.cache.judgement import judge, judge_displacement
from replay.recording.recording import Recording
from streams.archive.archive_reader import ArchiveReader

ROWS_MAX = 50
"""Groups in one answer, those that lost most; all are counted."""
AGAIN_SHARE = 0.1
"""A recording that grew by more than this part of its decisions is counted anew."""

_logger = logging.getLogger(__name__)


class StillCounting(ContrailError):
    """The report is being made; asking again in a moment helps."""


class CacheView:
    """One report at a time, and the last one. A question of another kind, or about a recording that grew much, waits
    for the report under way, and begins the next one."""

    def __init__(self, key: DeploymentKey | None) -> None:
        self._key = key
        self._thread: threading.Thread | None = None
        self._counted: tuple[str, int] | None = None
        """Of the last report: its groups, and the decisions that the recording had."""
        self._answer: dict[str, Any] | ContrailError | None = None
        self._share = 0.0
        self._closed = False

    def __repr__(self) -> str:
        return f"<CacheView of {self._counted}>"

    def report(self, archive: ArchiveReader, decisions: int, by: str) -> dict[str, Any]:
        """The report by these groups over the archive, which has so many decisions, or over one with a few less.
        StillCounting until it is made; CallerError or Corrupt if it cannot be."""
        if self._thread is not None and self._thread.is_alive():
            raise StillCounting(f"{100 * self._share:.0f} % of the decisions are counted")
        if self._counted is None or self._counted[0] != by or decisions > (1 + AGAIN_SHARE) * self._counted[1]:
            self._counted, self._answer, self._share = (by, decisions), None, 0.0
            file = ArchiveReader(archive.path, archive.path.open("rb"), archive.contents)
            self._thread = threading.Thread(target=self._count, args=(file, by), name="cache", daemon=True)
            self._thread.start()
            raise StillCounting("the decisions are being counted")
        if isinstance(self._answer, ContrailError):
            raise self._answer
        assert self._answer is not None
        return self._answer

    def close(self) -> None:
        """The report under way is given up."""
        self._closed = True
        if self._thread is not None:
            self._thread.join()

    def _count(self, archive: ArchiveReader, by: str) -> None:
        try:
            with Recording(archive, self._key) as recording:
                self._answer = _shown(cache_losses(recording, by=by, progress=self._progress))
        except _Closed:
            pass
        except ContrailError as error:
            self._answer = error
        except Exception:  # the page shows the failure and keeps answering
            _logger.exception("counting cache hits failed inside")
            self._answer = ContrailError("counting failed inside; this process's log says how")

    def _progress(self, done: int, of: int) -> None:
        if self._closed:
            raise _Closed
        self._share = done / max(1, of)


class _Closed(Exception):
    """The view was closed."""


def _shown(found: CacheReport) -> dict[str, Any]:
    """The report as the page takes it, with its sentences."""
    pushed = judge_displacement(found)
    texts = [judge(found.total.sums).text, *([pushed.text] if pushed is not None else [])]
    return {
        "by": found.by,
        "texts": texts,
        "total": msgspec.to_builtins(found.total),
        "rows": msgspec.to_builtins(found.rows[:ROWS_MAX]),
        "rows_total": len(found.rows),
        "apart": found.apart,
        "first_ms": found.first_ms,
        "last_ms": found.last_ms,
        "history_from_ms": found.history_from_ms,
    }

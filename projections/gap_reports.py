"""GapReports: what chains lack is said once in the process's log, whichever fold finds it."""

from __future__ import annotations

import logging
from collections import deque

from projections.chain import Gap
from projections.state import GAPS_KEPT, State

GAPS_TOLD_MAX = 16
"""Told one by one where many are found at once, as in a log whose head was cut; of the others the number."""

_logger = logging.getLogger(__name__)


class GapReports:
    """Compares what the state found with what was told."""

    def __init__(self, state: State) -> None:
        self.told = 0
        """Gaps since the process began, each counted once."""
        self._state = state
        self._seen = 0
        self._told: deque[Gap] = deque(maxlen=2 * GAPS_KEPT)

    def __repr__(self) -> str:
        return f"<GapReports {self.told} told>"

    def look(self) -> None:
        """What the state found since the last look is told. A comparison of two numbers if that is nothing."""
        found = self._state.gaps_found - self._seen
        if not found:
            return
        self._seen = self._state.gaps_found
        self._tell([gap for gap in list(self._state.gaps)[-found:] if gap not in self._told])

    def restart(self) -> None:
        """The state has become another: all that it found is looked at."""
        self._seen = 0
        self.look()

    def _tell(self, gaps: list[Gap]) -> None:
        self._told.extend(gaps)
        self.told += len(gaps)
        for gap in gaps[:GAPS_TOLD_MAX]:
            _logger.warning("%s", gap)
        if len(gaps) > GAPS_TOLD_MAX:
            _logger.warning("… and %d more such gaps", len(gaps) - GAPS_TOLD_MAX)

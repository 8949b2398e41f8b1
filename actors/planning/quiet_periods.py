"""QuietPeriods: periods of a fleet at zero without any request, held back and recorded together.

By the rules such a period changes no decision: the fleet stays at zero until a request comes. So the log gets one
period for a minute of them. When a request comes, the newest quiet period stands by itself before its own: the rates of
the last moments are then as if each period had been recorded.
"""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from core.events.scale import SCALE_VERSION, DemandRolled
from projections.scaling.scale_fold import ScaleFold

QUIET_S = 60
"""Longest time that is held back. A planner that dies takes so much with it, and its successor counts it again."""


class QuietPeriods:
    """Of one lead. At most two periods are held."""

    def __init__(self) -> None:
        self._older: DemandRolled | None = None
        """All held ones but the newest, as one."""
        self._newest: DemandRolled | None = None

    def __repr__(self) -> str:
        return f"<QuietPeriods of {self._held_s} s>"

    def hold(self, rolled: DemandRolled, *, rests: bool) -> bool:
        """True if the period is held back. `rests` is that of `is_at_rest`."""
        if not (rests and _is_quiet(rolled) and self._held_s + rolled.period_s < QUIET_S):
            return False
        self._older, self._newest = _merged(self._older, self._newest), rolled
        return True

    def take(self, rolled: DemandRolled) -> tuple[DemandRolled, ...]:
        """The periods to record, of which this is the newest; nothing is held any more. They are one if it is quiet,
        too."""
        older, newest = self._older, self._newest
        self._older = self._newest = None
        if _is_quiet(rolled):
            whole = _merged(_merged(older, newest), rolled)
            assert whole is not None
            return (whole,)
        return tuple(each for each in (older, newest, rolled) if each is not None)

    @property
    def _held_s(self) -> int:
        return sum(each.period_s for each in (self._older, self._newest) if each is not None)


def is_at_rest(fold: ScaleFold, ready: int, coming: int) -> bool:
    """The fleet is at zero by a decision of this program's rules, and no worker is there or comes."""
    last = fold.last
    return last is not None and last.target == ready == coming == 0 and last.version == SCALE_VERSION


def _is_quiet(rolled: DemandRolled) -> bool:
    """No request is known of it. A count that began anew says so in a period of its own."""
    counts = (rolled.arrivals, rolled.queued, rolled.refused, rolled.waiting, rolled.running, rolled.ended)
    return not any(counts) and not rolled.cells and rolled.since is UNSET


def _merged(before: DemandRolled | None, after: DemandRolled | None) -> DemandRolled | None:
    """Two quiet periods as one."""
    if before is None or after is None:
        return after if before is None else before
    return replace(after, period_s=before.period_s + after.period_s)

"""QuietPeriods: periods of a fleet at zero without any request, held back and recorded together.

By the rules such a period changes no decision: the fleet stays at zero until a request comes. So the log gets two
periods for a minute of them, the newest one and all before it. Whenever a request comes, the quiet period before its
own stands by itself: the rates of the last moments are then as if each period had been recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET
from msgspec.structs import replace

from core.events.scale import SCALE_VERSION, DemandRolled
from projections.scaling.scale_fold import ScaleFold

QUIET_S = 60
"""Longest time that is held back. A planner that dies takes so much with it, and its successor counts it again."""


class QuietPeriods:
    """Of one lead. At most two periods of each model are held."""

    def __init__(self) -> None:
        self._older: dict[str, DemandRolled] = {}
        """By model, all held ones but the newest, as one."""
        self._newest: dict[str, DemandRolled] = {}

    def __repr__(self) -> str:
        return f"<QuietPeriods of {self._held_s} s>"

    def hold(self, rolled: Mapping[str, DemandRolled], *, rests: bool) -> bool:
        """True if the period of all these models is held back. `rests` is that of `is_at_rest`, of each of them."""
        period_s = max(each.period_s for each in rolled.values())
        if not (rests and all(map(_is_quiet, rolled.values())) and self._held_s + period_s < QUIET_S):
            return False
        self._older = self._as_one(self._newest) if self._newest else {}
        self._newest = dict(rolled)
        return True

    def take(self, rolled: Mapping[str, DemandRolled]) -> dict[str, tuple[DemandRolled, ...]]:
        """By model, the periods to record before this one; nothing is held any more. They are one if this period is
        quiet for all models, which stands by itself: a request may come in the next one."""
        older, newest = self._older, self._newest
        if newest and all(map(_is_quiet, rolled.values())):
            older, newest = self._as_one(newest), {}
        self._older, self._newest = {}, {}
        return {model: tuple(part[model] for part in (older, newest) if part) for model in rolled}

    def _as_one(self, after: Mapping[str, DemandRolled]) -> dict[str, DemandRolled]:
        """The older periods and those after them."""
        if not self._older:
            return dict(after)
        return {
            model: replace(each, period_s=self._older[model].period_s + each.period_s) for model, each in after.items()
        }

    @property
    def _held_s(self) -> int:
        return sum(max((each.period_s for each in part.values()), default=0) for part in (self._older, self._newest))


def is_at_rest(fold: ScaleFold, ready: int, coming: int) -> bool:
    """The fleet is at zero by a decision of this program's rules, and no worker is there or comes."""
    last = fold.last
    return last is not None and last.target == ready == coming == 0 and last.version == SCALE_VERSION


def _is_quiet(rolled: DemandRolled) -> bool:
    """No request is known of it. A count that began anew says so in a period of its own."""
    counts = (rolled.arrivals, rolled.queued, rolled.refused, rolled.waiting, rolled.running, rolled.ended)
    waits_for_prefill = rolled.prefill_demand is not UNSET and rolled.prefill_demand.waiting
    return not any(counts) and not waits_for_prefill and not rolled.cells and rolled.since is UNSET

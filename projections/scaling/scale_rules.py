"""ScaleRules: the parts of which one version of the rules is made, and RULES: every version, all of them executable.

A decision is made, and made again, under the version that it records. A change that can give another decision needs a
new version:

1. The parts as they were stay, and RULES[N] names them. RULES gets the next version, and SCALE_VERSION names it.
2. `python -m tests.golden.make_scale_decisions` writes decisions of the new version.

`tests/golden/test_scale_decisions.py` fails while that is not done.
"""

from __future__ import annotations

from typing import NamedTuple

from core.events.scale import SCALE_VERSION
from projections.scaling.queue_model import Lanes, lanes_by_caches, lanes_in_turn


class ScaleRules(NamedTuple):
    """The parts in which versions differ."""

    sized_requests: int
    """Sizes are those of the last so many requests, and of the others of their event …"""
    sized_s: int
    """… and those of earlier ones within so many seconds, as long as these are like them (`RecentSizes`)."""
    lanes: Lanes
    """The spread of requests over workers, in the prediction of times between tokens."""
    hold_bp: int
    """The present number of workers stays while its prediction misses the goal by at most so much."""
    spends_surplus: bool
    """The goal sinks where more requests attained the bounds than was asked."""
    goes_round_whole: bool
    """In the prediction of times between tokens, arrivals repeat themselves after the time in which so many come. Else
    it is the time from the first to the last one and a mean time between two, which is none at all for a single one."""
    rests_at_zero: bool
    """A fleet that may be at zero ends at once when its time without an arrival is over, also where the forecast
    expects demand. It stays at zero until a request comes, and the decision that ends that says so."""
    relaxation: int
    """The goal is that of the expected demand. A forecast with a quantile lies above it: for each percent of that, so
    many percent more requests may miss the bounds. With any, the margin of a smaller fleet counts from the expected
    demand, until a fall had to be taken back."""
    eases_bounds: bool
    """A goal above the ceiling must be reached by eased bounds, too. Workers that attain nothing are never enough. By
    rules without it, any fleet reaches a ceiling of 0."""

    @property
    def sized(self) -> tuple[int, int]:
        """The requests and the seconds whose sizes count."""
        return self.sized_requests, self.sized_s


_V1 = ScaleRules(
    sized_requests=4096,
    sized_s=0,
    lanes=lanes_in_turn,
    hold_bp=70,
    spends_surplus=False,
    goes_round_whole=False,
    rests_at_zero=False,
    relaxation=0,
    eases_bounds=False,
)
_V2 = _V1._replace(sized_requests=2048, lanes=lanes_by_caches, hold_bp=100, spends_surplus=True)
_V3 = _V2._replace(goes_round_whole=True, rests_at_zero=True)
_V4 = _V3._replace(hold_bp=200, relaxation=2)
_V5 = _V4._replace(sized_s=3600)
_V6 = _V5._replace(eases_bounds=True)
RULES: dict[int, ScaleRules] = {1: _V1, 2: _V2, 3: _V3, 4: _V4, 5: _V5, 6: _V6}
"""By the version that a decision records (`ScaleDecided.version`).

A share of 95 % among 1024 arrivals deviates by 70 hundredths of a percent, and by some more where the sizes are a
sample, too. At a demand above the expected one the queue is closer to its limit, and deviates further. Sizes of 4096
requests follow a change late; those of 1024 turned a fleet around three times an hour at a steady load, and those of
2048 up to eight times where twelve requests came a second: sizes that vary by a sixth within minutes do not stay so.
"""
assert max(RULES) == SCALE_VERSION

"""Delay price: what a delay costs under `time`, by how full of talks the workers are.

A talk is decoded for a long time, and its next turn waits for the end of this one. So where talks fill the workers, a
delay counts more (decision 41 has the reasons).
"""

from __future__ import annotations

from core.settings import RoutingSettings
from projections.folds.load_fold import REUSE_STEPS

REUSE_FULL = 4 * REUSE_STEPS
"""Reuse (`projections.folds.load_fold.reuse_of`) from which on a worker is full of talks: four doublings."""
OWN_DELAYS = 2
"""Times that a request's own delay counts among those that talks suffer: searched on public traces."""


def delay_price_m(settings: RoutingSettings, reuse_max: int) -> int:
    """The price of a delay where the worker that reuses most reuses so much, in thousandths."""
    return settings.delay_weight_m * min(reuse_max, REUSE_FULL) // REUSE_FULL

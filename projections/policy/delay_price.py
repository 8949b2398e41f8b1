"""Delay price: the price of a delay, and of a worker's first active tokens, under `time`, by how full of talks the
workers are.

A talk is decoded for a long time, and its next turn waits for the end of this one. So where talks fill the workers, a
delay counts more (decision 41 has the reasons). The first talks on a worker count more, too: all steps of an answer are
in their company. While other workers are idle, a copy of the prompt costs less than the answer gains (decision 78).
"""

from __future__ import annotations

from core.settings import RoutingSettings
from projections.folds.load_fold import REUSE_STEPS

REUSE_FULL = 4 * REUSE_STEPS
"""Reuse (`projections.folds.load_fold.reuse_of`) from which on a worker is full of talks: four doublings."""
OWN_DELAYS = 2
"""Times that a request's own delay counts among those that talks suffer: searched on public traces."""
FIRST_TOKENS = 80_000
"""Tokens in active blocks of a worker that count more than further ones: one talk of coding agents. Where each worker
has as many, the price is the same everywhere, and prompts stay where their caches are."""
FIRST_TIMES = 10
"""They cost so many times `active_weight` more: searched on a public trace of coding agents. So while another worker
has less, company costs about a prefill of each of its tokens."""


def delay_price_m(settings: RoutingSettings, reuse_max: int) -> int:
    """The price of a delay where the worker that reuses most reuses so much, in thousandths."""
    return settings.delay_weight_m * min(reuse_max, REUSE_FULL) // REUSE_FULL


def first_active_price_m(settings: RoutingSettings, reuse_max: int) -> int:
    """The price of each of the first tokens in active blocks beside that of any, in thousandths of a prefill of a
    token, where the worker that reuses most reuses so much."""
    return FIRST_TIMES * settings.active_weight_m * min(reuse_max, REUSE_FULL) // REUSE_FULL

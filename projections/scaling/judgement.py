"""Judgement: the fewest workers that a judge's simulations find good enough."""

from __future__ import annotations

from core.events.scale import ScaleJudgement
from projections.scaling.queue_model import ALL_BP

COUNTS_MS = 120_000
"""An answer counts for decisions up to so long after the one whose demand was simulated …"""
FALL_BP = 500
"""… and while the demand is below the simulated one by at most so much."""
ERROR_BP = 100
"""A number of workers is good enough if its simulation misses the goal by at most this: a share of 95 % among 768
requests deviates by 80 hundredths of a percent."""
GAIN_BP = 50
"""It is also good enough if one worker more would add less than this: no fleet makes up for a long prompt."""


def fewest_judged(judgement: ScaleJudgement | None, at_ms: int, rate_m: int, goal_bp: int) -> int:
    """The fewest workers that are good enough for that goal; one of the simulated numbers, and the most of these if
    none is. 0 without an answer that counts at that time and demand. It never falls with the demand, if the goal does
    not: the answer counts from some demand on."""
    if judgement is None or judgement.absent or at_ms - judgement.asked_ms > COUNTS_MS:
        return 0
    if rate_m < judgement.rate_m * (ALL_BP - FALL_BP) // ALL_BP:
        return 0
    found = judgement.workers
    for place, each in enumerate(found):
        gain_bp = found[place + 1].attainment_bp - each.attainment_bp if place + 1 < len(found) else GAIN_BP
        if each.attainment_bp >= goal_bp - ERROR_BP or gain_bp < GAIN_BP:
            return each.workers
    return found[-1].workers if found else 0

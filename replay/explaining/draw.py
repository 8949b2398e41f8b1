"""The draw of a decision under a temperature: how likely each candidate was, and where the draw fell."""

from __future__ import annotations

from collections.abc import Sequence

from core.settings import RoutingSettings
from projections.policy.cost import MILLI
from projections.policy.policies import SOFT_STEPS, SOFT_TABLE, TEMPERATURE_POLICIES

SEED_BITS = 64


def drawn(settings: RoutingSettings) -> bool:
    """Whether the policy draws among candidates by their costs."""
    return settings.policy in TEMPERATURE_POLICIES and settings.temperature_m > 0


def probabilities(costs: Sequence[int], settings: RoutingSettings) -> list[float] | None:
    """Of being chosen, in the order of the costs; None where no draw decides."""
    if settings.policy == "random":
        return [1 / len(costs)] * len(costs)
    if settings.policy == "power-of-two" and len(costs) > 1:
        return [_of_pairs(costs, cost) for cost in costs]
    if not drawn(settings):
        return None
    weights = _weights(costs, settings.temperature_m)
    return [weight / sum(weights) for weight in weights]


def _of_pairs(costs: Sequence[int], cost: int) -> float:
    """Of the ordered pairs of candidates, the share that one of this cost wins: the cheaper does, or the first."""
    dearer, same = sum(each > cost for each in costs), costs.count(cost) - 1
    return (2 * dearer + same) / (len(costs) * (len(costs) - 1))


def draw(seed: int) -> float:
    """Where the draw fell, in [0, 1): candidates share it by id, each as much as it is likely."""
    return seed / (1 << SEED_BITS)


def _weights(costs: Sequence[int], temperature_m: int) -> list[int]:
    """As `projections.policy.policies` has them: 2^(-(cost - min) / (spread * temperature)), in integers."""
    lowest, highest = min(costs), max(costs)
    scale = max(1, (highest - lowest) * temperature_m)
    steps = [(cost - lowest) * SOFT_STEPS * MILLI // scale for cost in costs]
    return [SOFT_TABLE[step % SOFT_STEPS] >> (step // SOFT_STEPS) for step in steps]

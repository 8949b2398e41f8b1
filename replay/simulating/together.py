"""Together: whether replicas that decide at about the same time choose the same worker, more often than by chance.

Two decisions that follow each other within WITHIN_US and come from different replicas make a pair: neither saw much of
the other. If both chose one worker, the second's choice rests on a load that the first has changed already. By chance
that happens in the sum over the workers of the product of how often either side chose it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from replay.simulating.served import Served

WITHIN_US = 100_000
"""Decisions this far apart, or nearer, were made without each other where events take as long."""


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's text; nothing with one replica."""

    pairs: int = 0
    same_worker: float = 0.0
    """Share of them."""
    by_chance: float = 0.0
    """What that share would be if neither knew anything."""
    disagreement: float | None = None
    """Of the other replicas that were shown a request at the moment when one decided about it, the share that would
    have chosen another worker; None if none was shown any. One that was held is shown with what else was held."""
    replicas: tuple[int, ...] = ()
    """Requests that each decided about."""
    prediction_error: tuple[float, ...] = ()
    """Of each replica: tokens that its decisions expected in a cache and were not there, or the other way round, over
    its prompt tokens."""


def together(done: Sequence[Served]) -> Together:
    """Of what was served."""
    count = 1 + max((each.replica for each in done), default=0)
    found = _pairs(done) if count > 1 else []
    same = sum(first.worker == then.worker for first, then in found)
    return Together(
        pairs=len(found),
        same_worker=same / len(found) if found else 0.0,
        by_chance=_by_chance(found),
        disagreement=_disagreement(done, count - 1),
        replicas=tuple(sum(each.replica == replica for each in done) for replica in range(count)),
        prediction_error=tuple(_error([each for each in done if each.replica == replica]) for replica in range(count)),
    )


def _pairs(done: Sequence[Served]) -> list[tuple[Served, Served]]:
    ordered = sorted(done, key=lambda each: each.routed_us)
    return [
        (first, then)
        for first, then in pairwise(ordered)
        if first.replica != then.replica and then.routed_us - first.routed_us <= WITHIN_US
    ]


def _by_chance(found: Sequence[tuple[Served, Served]]) -> float:
    if not found:
        return 0.0
    first, then = (Counter(pair[side].worker for pair in found) for side in (0, 1))
    return sum(count * then[worker] for worker, count in first.items()) / len(found) ** 2


def _disagreement(done: Sequence[Served], others: int) -> float | None:
    asked = [each.others_differ for each in done if each.others_differ >= 0]
    return sum(asked) / (len(asked) * others) if asked and others else None


def _error(done: Sequence[Served]) -> float:
    prompt = sum(each.prompt_tokens for each in done)
    return sum(abs(each.predicted_tokens - each.cached_tokens) for each in done) / prompt if prompt else 0.0

"""PrefillBacklog: how long the prefills that are outstanding on a worker would hold up a new one, estimated.

A worker prefills in the order in which requests came, so that it is free again at

    free = max(free, when the next one was expected to begin) + 1.05 * prefill(its tokens)

taken over all outstanding ones in that order. This is the decaying clock of a dispatcher, made anew from what is
outstanding at each decision: so several replicas' requests add up in whatever order they were heard of, the fold and
what is ahead of it can be joined, and a clock that runs out, or whose requests got their first tokens, is gone by
itself. Integers throughout, in microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from core.ids import WorkerId
from projections.folds.in_flight import OutstandingPrefill
from projections.policy.prefill_time import MILLI, PrefillTime

SLACK_M = 1050
"""A prefill is taken to hold up others longer than it lasts by this, in thousandths: the pass that it shares with
decoding takes its part."""


class PrefillBacklog(NamedTuple):
    """What a decision that estimates times goes by."""

    time: PrefillTime
    waits_us: Mapping[WorkerId, int]
    """By worker; nothing for 0. What is held in the router included."""
    held_us: Mapping[WorkerId, int] = MappingProxyType({})
    """How much of it waits for what is held in the router."""

    @staticmethod
    def of(
        time: PrefillTime,
        outstanding: Mapping[WorkerId, Collection[OutstandingPrefill]],
        now_ms: int,
        held_us: Mapping[WorkerId, int] = MappingProxyType({}),
    ) -> PrefillBacklog:
        """Of all workers that prefill; O(outstanding prefills * log of them)."""
        waits = {}
        for worker in sorted(outstanding):
            wait = wait_us(outstanding[worker], time, now_ms)
            if wait:
                waits[worker] = wait
        return PrefillBacklog(time, waits).behind(held_us) if held_us else PrefillBacklog(time, waits)

    def behind(self, held_us: Mapping[WorkerId, int]) -> PrefillBacklog:
        """The same with this much more, by worker, for what is held in the router."""
        if not held_us:
            return self
        waits = dict(self.waits_us)
        for worker, held in held_us.items():
            waits[worker] = waits.get(worker, 0) + held
        return PrefillBacklog(self.time, dict(sorted(waits.items())), held_us)

    def outstanding_us(self, worker: WorkerId) -> int:
        """How long prefills that are with the worker hold a new one up there."""
        return self.waits_us.get(worker, 0) - self.held_us.get(worker, 0)


NO_BACKLOG = PrefillBacklog(PrefillTime(0, 0), MappingProxyType({}))
"""Of policies that estimate nothing."""


def wait_us(outstanding: Collection[OutstandingPrefill], time: PrefillTime, now_ms: int) -> int:
    """How long after `now_ms` the last of them is expected to be done; 0 if that should be over. Nothing is expected to
    begin later than now once those before it are done: neither another clock nor an old guess makes a worker idle."""
    now_us, (base_us, per_token_m) = now_ms * MILLI, time
    free_us = 0
    # no calls of min() and max(): each costs as much as the rest, and this runs for every worker
    for begins_us, _, _, tokens in sorted(outstanding) if len(outstanding) > 1 else outstanding:
        if begins_us > free_us:
            free_us = begins_us if begins_us < now_us else max(free_us, now_us)
        free_us += SLACK_M * (base_us + per_token_m * tokens // MILLI) // MILLI
    return free_us - now_us if free_us > now_us else 0

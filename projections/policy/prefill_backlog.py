"""PrefillBacklog: the expected wait of a new prefill behind the outstanding ones of a worker.

A worker prefills in the order in which requests came, so it is free again at

    free = max(free, expected start of the next one) + 1.05 * prefill(its tokens)

taken over all outstanding ones in that order. This is the decaying clock of a dispatcher, made anew from the
outstanding prefills at each decision. So requests of several replicas add up in any order, and the fold and the pending
events can be joined. A clock that has run out, or has requests with first tokens only, vanishes by itself. Integers
throughout, in microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from core.ids import WorkerId
from projections.folds.in_flight import OutstandingPrefill
from projections.policy.load_time import LoadPrices
from projections.policy.prefill_time import MILLI, PrefillTime

SLACK_M = 1050
"""A prefill is taken to hold up others longer than it lasts by this, in thousandths: the pass that it shares with
decoding takes its part."""


class PrefillBacklog(NamedTuple):
    """Outstanding prefills of all workers, as a decision that estimates times reads them."""

    time: PrefillTime
    waits_us: Mapping[WorkerId, int]
    """By worker, in the order of ids; nothing for 0. What is held in the router included."""
    held_us: Mapping[WorkerId, int] = MappingProxyType({})
    """The part of each wait that is due to requests held in the router."""
    reuse: Mapping[WorkerId, int] = MappingProxyType({})
    """Reuse of the talks that live there (`projections.folds.load_fold.reuse_of`), by worker; nothing for 0. Version 1
    of the rules reads none."""
    reuse_max: int = 0
    """The greatest of all candidates. Rules before version 3 read none."""
    loading: LoadPrices | None = None
    """Prices of blocks of slower tiers; None without learned load times."""
    prices_first_active: bool = True
    """The first active tokens cost more among talks. Rules before version 7 have one price for all."""
    turnover: Mapping[WorkerId, int] = MappingProxyType({})
    """The turnover of a worker beyond that of others, in 64ths (`projections.policy.cost.excess_turnover`); nothing
    for 0. Rules before version 8 read none."""

    @staticmethod
    def of(
        time: PrefillTime,
        outstanding: Mapping[WorkerId, Collection[OutstandingPrefill]],
        now_ms: int,
        held_us: Mapping[WorkerId, int] = MappingProxyType({}),
        reuse: Mapping[WorkerId, int] = MappingProxyType({}),
    ) -> PrefillBacklog:
        """Of all workers that prefill; O(outstanding prefills * log of them)."""
        waits = {}
        for worker in sorted(outstanding):
            wait = wait_us(outstanding[worker], time, now_ms)
            if wait:
                waits[worker] = wait
        return PrefillBacklog(time, waits, reuse=reuse).behind(held_us)

    def behind(self, held_us: Mapping[WorkerId, int]) -> PrefillBacklog:
        """The same with this much more, by worker, for what is held in the router."""
        if not held_us:
            return self
        waits = dict(self.waits_us)
        for worker, held in held_us.items():
            waits[worker] = waits.get(worker, 0) + held
        return self._replace(waits_us=dict(sorted(waits.items())), held_us=held_us)

    def outstanding_us(self, worker: WorkerId) -> int:
        """Expected wait of a new prefill behind those that are with the worker."""
        return self.waits_us.get(worker, 0) - self.held_us.get(worker, 0)


NO_BACKLOG = PrefillBacklog(PrefillTime(0, 0), MappingProxyType({}))
"""Of policies that estimate nothing."""


def wait_us(outstanding: Collection[OutstandingPrefill], time: PrefillTime, now_ms: int) -> int:
    """Expected time after `now_ms` until the last of them is done; 0 if that should be over. No prefill is expected to
    begin later than now once those before it are done: neither another clock nor an old estimate makes a worker
    idle."""
    now_us, (base_us, per_token_m) = now_ms * MILLI, time
    free_us = 0
    # no calls of min() and max(): each costs as much as the rest, and this runs for every worker
    for begins_us, _, _, tokens in sorted(outstanding) if len(outstanding) > 1 else outstanding:
        if begins_us > free_us:
            free_us = begins_us if begins_us < now_us else max(free_us, now_us)
        free_us += SLACK_M * (base_us + per_token_m * tokens // MILLI) // MILLI
    return free_us - now_us if free_us > now_us else 0

"""AdapterLoads: what a request is expected to wait where its adapter (LoRA) has to be loaded first.

1. Workers announce adapters that they load at the first request as cold (`core.events.kv.Adapter.cold`). Such a worker
   is a candidate like the others, and the load counts there as a wait: it is part of `RouteRequest.held`, which the
   decision records.
2. Where all slots are taken, another adapter has to go, and is loaded again some time: that counts as a second load.
3. The duration of a load is learned from first tokens that came behind one.
4. A load that a request of this replica has begun counts with what should be left of it, until the log has its end.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from core.ids import WorkerId
from projections.folds.kv_fold import Member, adapters_of, is_cold

LOAD_US = 500_000
"""Taken for a load until one is learned: to copy some 100 MB to a device, behind the step under way."""
LOAD_MIN_US, LOAD_MAX_US = 1000, 10_000_000
LEARNED_PARTS = 4
"""The newest load counts as one part of so many in the learned duration."""
NOTED_LOADS = 4
"""A load that was begun so many durations ago and that the log does not show has failed, or its adapter was let go
since: it counts anew."""
NOTED_MAX = 4096
"""Loads under way that are remembered; the oldest is forgotten."""


class AdapterLoads:
    """Of one replica."""

    def __init__(self) -> None:
        self._begun_us: dict[tuple[WorkerId, str], int] = {}
        """By worker and id, the oldest first."""
        self._load_us = LOAD_US

    def __repr__(self) -> str:
        return f"<AdapterLoads {len(self._begun_us)} noted, {self._load_us} us each>"

    def waits_us(self, serving: Iterable[Member], adapter: str, now_us: int) -> dict[WorkerId, int]:
        """The expected wait for the adapter of this id at each worker that has not loaded it, by id. O(workers and
        their adapters)."""
        found = {}
        for member in serving:
            if not is_cold(member, adapter):
                self._begun_us.pop((member.worker, adapter), None)
                continue
            begun_us = self._begun_us.get((member.worker, adapter))
            if begun_us is None or now_us - begun_us > NOTED_LOADS * self._load_us:
                found[member.worker] = self._load_us * (2 if _is_full(member) else 1)
            elif now_us - begun_us < self._load_us:
                found[member.worker] = self._load_us - (now_us - begun_us)
        return dict(sorted(found.items()))

    def note(self, member: Member | None, adapter: str, now_us: int) -> bool:
        """A request for the adapter goes to this worker. True if the worker has to load it."""
        if member is None:
            return False
        key = member.worker, adapter
        if not is_cold(member, adapter):
            self._begun_us.pop(key, None)
            return False
        if now_us - self._begun_us.get(key, now_us) > NOTED_LOADS * self._load_us:
            del self._begun_us[key]
        self._begun_us.setdefault(key, now_us)
        while len(self._begun_us) > NOTED_MAX:
            del self._begun_us[next(iter(self._begun_us))]
        return True

    def learn(self, worker: WorkerId, adapter: str, begun_us: int, took_us: int) -> None:
        """A request that began a load then had its first token `took_us` later than without one. Nothing is learned of
        requests that found the load under way."""
        if self._begun_us.get((worker, adapter)) == begun_us:
            took_us = min(LOAD_MAX_US, max(LOAD_MIN_US, took_us))
            self._load_us += (took_us - self._load_us) // LEARNED_PARTS


def _is_full(member: Member) -> bool:
    slots = UNSET if member.joined is None else member.joined.adapter_slots
    return slots is not UNSET and sum(each.cold is not True for each in adapters_of(member)) >= slots

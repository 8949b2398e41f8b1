"""AdapterLoads: what a request is expected to wait where its adapter (LoRA) has to be loaded first.

1. Workers announce adapters that they load at the first request as cold (`core.events.kv.Adapter.cold`). Such a worker
   is a candidate like the others, and the load counts there as a wait: it is part of `RouteRequest.held`, which the
   decision records.
2. Where all slots are taken, another adapter has to go, and is loaded again some time: that counts as a second load.
3. A load that a request of this replica has begun counts with what should be left of it, until the log has its end.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from core.ids import WorkerId
from projections.folds.kv_fold import Member, adapters_of, is_cold

LOAD_US = 500_000
"""Taken for each load: to copy some 100 MB to a device, behind the step under way."""
NOTED_US = 10_000_000
"""A load that took longer has failed: it counts anew."""
NOTED_MAX = 4096
"""Loads under way that are remembered; the oldest is forgotten."""


class AdapterLoads:
    """Of one replica."""

    def __init__(self) -> None:
        self._begun_us: dict[tuple[WorkerId, str], int] = {}
        """By worker and id, the oldest first."""

    def __repr__(self) -> str:
        return f"<AdapterLoads {len(self._begun_us)} noted>"

    def waits_us(self, serving: Iterable[Member], adapter: str, now_us: int) -> dict[WorkerId, int]:
        """The expected wait for the adapter of this id at each worker that has not loaded it, by id. O(workers and
        their adapters)."""
        found = {}
        for member in serving:
            if not is_cold(member, adapter):
                continue
            begun_us = self._begun_us.get((member.worker, adapter))
            if begun_us is None or now_us - begun_us > NOTED_US:
                found[member.worker] = LOAD_US * (2 if _is_full(member) else 1)
            elif now_us - begun_us < LOAD_US:
                found[member.worker] = LOAD_US - (now_us - begun_us)
        return dict(sorted(found.items()))

    def note(self, member: Member | None, adapter: str, now_us: int) -> bool:
        """A request for the adapter goes to this worker. True if the worker has to load it."""
        if member is None:
            return False
        key = member.worker, adapter
        if not is_cold(member, adapter):
            self._begun_us.pop(key, None)
            return False
        if now_us - self._begun_us.get(key, now_us) > NOTED_US:
            del self._begun_us[key]
        self._begun_us.setdefault(key, now_us)
        while len(self._begun_us) > NOTED_MAX:
            del self._begun_us[next(iter(self._begun_us))]
        return True


def _is_full(member: Member) -> bool:
    slots = UNSET if member.joined is None else member.joined.adapter_slots
    return slots is not UNSET and sum(each.cold is not True for each in adapters_of(member)) >= slots

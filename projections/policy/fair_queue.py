"""FairQueue: the order of waiting items: fair between tenants, within a tenant by priority, then by arrival.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) in integers. Each tenant has a tag: the virtual time at which its
next request starts. The lowest tag is served, the clock moves to it, and the tag grows by the cost of the request. So
the service of two waiting tenants never differs by more than one request of each, however many more one of them sends,
and under any priority. A new tenant starts at the clock, without a claim on earlier time.

A priority orders the items of one tenant, and never precedes the share of another. Within a tenant it is strict: the
caller bounds the wait of an item that others of its tenant precede.

When too many items wait, the tenant with most of them gives up its last one: of its last priority, the newest.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)

TENANTS_KEPT = 1024
"""Tenants that wait for nothing, but are remembered for the service that they had, beside as many as wait."""


class VirtualClock:
    """Virtual start times of tenants. A tenant that was away has no claim on time that it did not use."""

    def __init__(self) -> None:
        self.time = 0
        self._tags: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<VirtualClock {self.time}, {len(self._tags)} tenants>"

    def start(self, tenant: str) -> int:
        """The virtual time at which the tenant's next request starts."""
        return max(self.time, self._tags.get(tenant, 0))

    def charge(self, tenant: str, cost: int) -> None:
        """A request of that cost is served: the tenant's next one starts so much later."""
        self._tags[tenant] = self.start(tenant) + cost

    def advance(self, start: int) -> None:
        """No waiting tenant starts before this time."""
        self.time = max(self.time, start)

    def forget(self, waiting: Collection[str]) -> None:
        """Bounds the tenants that are remembered without a waiting item: names are cheap to invent."""
        if len(self._tags) > 2 * len(waiting) + TENANTS_KEPT:
            self._tags = {name: tag for name, tag in self._tags.items() if name in waiting}


class _QueuedItem(NamedTuple, Generic[T]):
    """Compared by priority and arrival."""

    priority: int
    number: int
    """Of its arrival; no two have one."""
    cost: int
    item: T


class _Tenant(Generic[T]):
    """One tenant that waits."""

    __slots__ = ("head", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: list[_QueuedItem[T]] = []
        """In their order."""
        self.head = (-1, -1)
        """Tag and number of the first that waits; another heap entry of this tenant is outdated."""


class FairQueue(Generic[T]):
    """Items are told apart by equality. Deterministic; O(log n) to push and pop, and to move the tenant's own items,
    unless something else is said."""

    def __init__(self) -> None:
        self._clock = VirtualClock()
        self._tenants: dict[str, _Tenant[T]] = {}
        """Those that wait."""
        self._where: dict[T, tuple[_Tenant[T], _QueuedItem[T]]] = {}
        self._heads: list[tuple[int, int, _Tenant[T]]] = []
        """Tag and number of tenants' first items, and of some that are gone."""
        self._numbers = count()

    def __repr__(self) -> str:
        return f"<FairQueue of {len(self)}, {len(self._tenants)} tenants>"

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, item: object) -> bool:
        return item in self._where

    @property
    def tenants(self) -> int:
        """Tenants with waiting items."""
        return len(self._tenants)

    def has_too_many(self, tenant: str, comes: str) -> bool:
        """True if the tenant would have more than its share of the waiting items, with one more of the tenant
        `comes`."""
        tenants = self.tenants + (self.of_tenant(comes) == 0)
        return (self.of_tenant(tenant) + (tenant == comes)) * tenants > len(self) + 1

    def of_tenant(self, name: str) -> int:
        """Waiting items of the tenant."""
        known = self._tenants.get(name)
        return 0 if known is None else len(known.waiting)

    def push(self, item: T, priority: int, tenant: str, cost: int) -> None:
        """The item waits, behind those of its tenant and priority. `cost` is its work, at least 1, in one unit."""
        assert item not in self._where
        assert cost > 0
        known = self._tenants.get(tenant)
        if known is None:
            known = self._tenants[tenant] = _Tenant(tenant)
        queued = _QueuedItem(priority, next(self._numbers), cost, item)
        insort(known.waiting, queued)
        self._where[item] = known, queued
        if known.waiting[0] is queued:
            self._lead(known)

    def pop(self) -> T:
        """The next one, which waits no more. There is one."""
        assert self._where
        while True:
            tag, number, tenant = heappop(self._heads)
            if tenant.head == (tag, number):
                break  # else it was removed meanwhile, or another precedes it
        first = tenant.waiting[0]
        self._clock.advance(tag)
        self._clock.charge(tenant.name, first.cost)
        self._take(tenant, first)
        self._clock.forget(self._tenants)
        return first.item

    def remove(self, item: T) -> bool:
        """The item waits no more, and cost its tenant nothing; False if it did not wait."""
        found = self._where.get(item)
        if found is None:
            return False
        self._take(*found)
        return True

    def crowded_out(self, priority: int, tenant: str) -> T | None:
        """The item that leaves so that one more of this tenant can wait: the last of the tenant with most items, that
        one included. None if it would be the new one itself. O(tenants)."""
        if not self._where:
            return None
        most = max(self._tenants.values(), key=lambda each: (len(each.waiting), each.head, each.name))
        if self.of_tenant(tenant) + 1 < len(most.waiting):
            return most.waiting[-1].item
        own = self._tenants.get(tenant)
        last = None if own is None else own.waiting[-1]
        return None if last is None or last.priority <= priority else last.item

    def _take(self, tenant: _Tenant[T], queued: _QueuedItem[T]) -> None:
        """The item is gone; the tenant has the position of its next item in the order."""
        at = bisect_left(tenant.waiting, queued)
        del tenant.waiting[at], self._where[queued.item]
        if not tenant.waiting:
            tenant.head = (-1, -1)
            del self._tenants[tenant.name]
        elif not at:
            self._lead(tenant)
        if not self._where:
            self._clock = VirtualClock()  # without a waiting item, no tenant has a claim
        if len(self._heads) > 2 * len(self._where) + TENANTS_KEPT:
            self._heads = [entry for entry in self._heads if entry[2].head == entry[:2]]
            heapify(self._heads)

    def _lead(self, tenant: _Tenant[T]) -> None:
        """The heap has the tenant's first item."""
        tenant.head = self._clock.start(tenant.name), tenant.waiting[0].number
        heappush(self._heads, (*tenant.head, tenant))

"""FairQueue: the order of waiting items: by priority, then fair between tenants, then by arrival.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) in integers. Within a priority each tenant has a tag: the virtual
time at which its next request starts. The lowest tag is served, the clock of the priority moves to it, and the tag
grows by the cost of the request. So the service of two waiting tenants never differs by more than one request of each,
however many more one of them sends. A new tenant starts at the clock, without a claim on earlier time.

When too many items wait, the last item of the tenant with most of them leaves, of the priority that is served last.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)

TENANTS_KEPT = 1024
"""Tenants of a priority that wait for nothing, but are remembered for what they had, beside as many as wait."""


class _QueuedItem(NamedTuple):
    cost: int
    number: int
    """Of its arrival."""


class _Tenant(Generic[T]):
    """One tenant within one priority."""

    __slots__ = ("head", "name", "priority", "tag", "waiting")

    def __init__(self, priority: int, name: str, tag: int) -> None:
        self.priority = priority
        self.name = name
        self.tag = tag
        self.waiting: dict[T, _QueuedItem] = {}
        self.head = (-1, -1)
        """Tag and number of the first that waits; what else the heap says of this tenant is outdated."""


class _Priority(Generic[T]):
    """All of one priority; there while any of it waits."""

    __slots__ = ("clock", "length", "tenants", "waiting")

    def __init__(self) -> None:
        self.clock = 0
        self.length = 0
        self.waiting = 0
        """Tenants that do."""
        self.tenants: dict[str, _Tenant[T]] = {}


class FairQueue(Generic[T]):
    """Items are told apart by equality. Deterministic; O(log n) to push and pop, unless something else is said."""

    def __init__(self) -> None:
        self._priorities: dict[int, _Priority[T]] = {}
        self._where: dict[T, _Tenant[T]] = {}
        self._heads: list[tuple[int, int, int, _Tenant[T]]] = []
        """Priority, tag, number: of tenants' first items, and of some that are gone."""
        self._numbers = count()

    def __repr__(self) -> str:
        return f"<FairQueue of {len(self)} in {len(self._priorities)} priorities>"

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, item: object) -> bool:
        return item in self._where

    @property
    def tenants(self) -> int:
        """Waiting items of each tenant, by priority. O(priorities)."""
        return sum(each.waiting for each in self._priorities.values())

    def has_too_many(self, tenant: str, comes: str) -> bool:
        """True if the tenant would have more than its share of the waiting items, with one more of the tenant
        `comes`."""
        tenants = self.tenants + (self.of_tenant(comes) == 0)
        return (self.of_tenant(tenant) + (tenant == comes)) * tenants > len(self) + 1

    def of_tenant(self, name: str) -> int:
        """Waiting items of the tenant. O(priorities)."""
        known = (each.tenants.get(name) for each in self._priorities.values())
        return sum(len(tenant.waiting) for tenant in known if tenant is not None)

    def push(self, item: T, priority: int, tenant: str, cost: int) -> None:
        """The item waits, behind those of its tenant and priority. `cost` is its work, at least 1, in one unit."""
        assert item not in self._where
        assert cost > 0
        own = self._priorities.get(priority)
        if own is None:
            own = self._priorities[priority] = _Priority()
        known = own.tenants.get(tenant)
        if known is None:
            known = own.tenants[tenant] = _Tenant(priority, tenant, own.clock)
        known.waiting[item] = _QueuedItem(cost, next(self._numbers))
        self._where[item] = known
        own.length += 1
        if len(known.waiting) == 1:
            own.waiting += 1
            known.tag = max(known.tag, own.clock)
            self._lead(known)
            self._forget(own)

    def pop(self) -> T:
        """The next one, which waits no more. There is one."""
        assert self._where
        while True:
            priority, tag, number, tenant = heappop(self._heads)
            if tenant.head == (tag, number):
                break  # else it was removed meanwhile
        item, asked = next(iter(tenant.waiting.items()))
        self._priorities[priority].clock = tag
        tenant.tag = tag + asked.cost
        self._take(item, tenant)
        return item

    def remove(self, item: T) -> bool:
        """The item waits no more, and cost its tenant nothing; False if it did not wait."""
        tenant = self._where.get(item)
        if tenant is None:
            return False
        self._take(item, tenant)
        return True

    def crowded_out(self, priority: int, tenant: str) -> T | None:
        """The item that leaves so that one more of this tenant can wait: the last of the tenant with most items, of the
        priority that is served last. None if that would be the new one. O(tenants of that priority)."""
        last = max(self._priorities, default=priority)
        if priority > last or not self._where:
            return None
        tenants = self._priorities[last].tenants
        most = max(tenants.values(), key=lambda each: (len(each.waiting), each.tag, each.name))
        if priority == last:
            own = tenants.get(tenant)
            if 1 + (len(own.waiting) if own is not None else 0) >= len(most.waiting):
                return None
        return next(reversed(most.waiting))

    def _take(self, item: T, tenant: _Tenant[T]) -> None:
        """The item is gone; the tenant has the position of its next item in the order."""
        was_first = tenant.waiting.pop(item).number == tenant.head[1]
        del self._where[item]
        own = self._priorities[tenant.priority]
        own.length -= 1
        if not tenant.waiting:
            own.waiting -= 1
        if was_first:
            self._lead(tenant)
        if not own.length:
            del self._priorities[tenant.priority]  # without a waiting item, no tenant has a claim
        if len(self._heads) > 2 * len(self._where) + TENANTS_KEPT:
            self._heads = [entry for entry in self._heads if entry[3].head == entry[1:3]]
            heapify(self._heads)

    def _lead(self, tenant: _Tenant[T]) -> None:
        if not tenant.waiting:
            tenant.head = (-1, -1)
            return
        number = next(iter(tenant.waiting.values())).number
        tenant.head = (tenant.tag, number)
        heappush(self._heads, (tenant.priority, tenant.tag, number, tenant))

    @staticmethod
    def _forget(own: _Priority[T]) -> None:
        """Bounds the tenants that are remembered without a waiting item: names are cheap to invent."""
        if len(own.tenants) > 2 * own.waiting + TENANTS_KEPT:
            own.tenants = {name: tenant for name, tenant in own.tenants.items() if tenant.waiting}

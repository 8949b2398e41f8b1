"""The order of waiting requests: fairness between tenants, priority, arrival, under any mix of pushes and removals."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from projections.policy import fair_queue
from projections.policy.fair_queue import FairQueue

costs = st.integers(1, 1000)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(costs, min_size=1, max_size=30), min_size=2, max_size=5))
def test_who_waits_all_the_time_gets_an_equal_share(asked: list[list[int]]) -> None:
    """Between any two moments at which two tenants both wait, what they got differs by one request of each at most."""
    queue = FairQueue[tuple[int, int]]()
    left = Counter[int]()
    for tenant, wanted in enumerate(asked):
        for number, cost in enumerate(wanted):
            queue.push((tenant, number), 0, str(tenant), cost)
            left[tenant] += 1
    got, history = Counter[int](), [Counter[int]()]
    while len(queue):
        tenant, number = queue.pop()
        left[tenant] -= 1
        got[tenant] += asked[tenant][number]
        if min(left.values()) < 1:
            break
        history.append(Counter(got))
    largest = [max(wanted) for wanted in asked]
    for i, before in enumerate(history):
        for after in history[i:]:
            work = [after[tenant] - before[tenant] for tenant in range(len(asked))]
            for a, b in combinations(range(len(work)), 2):
                assert abs(work[a] - work[b]) <= largest[a] + largest[b]


def test_a_flood_does_not_delay_who_asks_for_little() -> None:
    """Somebody with one request among a thousand of another is next but one at the latest."""
    queue = FairQueue[str]()
    for number in range(1000):
        queue.push(f"flood {number}", 0, "flood", 500)
    assert [queue.pop() for _ in range(3)] == ["flood 0", "flood 1", "flood 2"]
    queue.push("single", 0, "quiet", 500)
    assert "single" in {queue.pop(), queue.pop()}


def test_who_was_away_has_no_claim_on_what_it_did_not_use() -> None:
    """A tenant that comes back shares from then on; it does not catch up."""
    queue = FairQueue[tuple[str, int]]()
    for number in range(100):
        queue.push(("steady", number), 0, "steady", 10)
    for _ in range(50):
        queue.pop()
    for number in range(50):
        queue.push(("late", number), 0, "late", 10)
    assert Counter(queue.pop()[0] for _ in range(40)) == {"steady": 20, "late": 20}


def test_lower_priority_numbers_are_served_first() -> None:
    """As in vLLM; among the items of one tenant, and then by arrival."""
    queue = FairQueue[str]()
    for item, priority in [("c", 5), ("a", -1), ("d", 5), ("b", 0)]:
        queue.push(item, priority, "x", 1)
    assert [queue.pop() for _ in range(4)] == ["a", "b", "c", "d"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1000, 1000), costs), min_size=2, max_size=60), st.data())
def test_priorities_move_no_service_between_tenants(items: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """With equal costs, the tenants of the served items are the same for any priorities, one by one."""
    plain, ordered = FairQueue[int](), FairQueue[int]()
    for number, (tenant, priority, _) in enumerate(items):
        plain.push(number, 0, str(tenant), 10)
        ordered.push(number, priority, str(tenant), 10)
    served = Counter[int](), Counter[int]()
    for _ in items:
        for queue, count in zip((plain, ordered), served, strict=True):
            count[items[queue.pop()][0]] += 1
        waiting = [tenant for tenant in range(4) if served[0][tenant] < sum(it[0] == tenant for it in items)]
        for tenant in waiting:
            assert abs(served[0][tenant] - served[1][tenant]) <= 1


def test_what_is_given_up_costs_its_tenant_nothing() -> None:
    """The next one of it takes the place that was left."""
    queue = FairQueue[str]()
    queue.push("a0", 0, "a", 10_000)
    queue.push("a1", 0, "a", 1)
    queue.push("b0", 0, "b", 5)
    queue.push("b1", 0, "b", 5)
    assert queue.remove("a0")
    assert not queue.remove("a0")
    assert [queue.pop() for _ in range(3)] == ["a1", "b0", "b1"]


@pytest.mark.parametrize(
    ("waiting", "comes", "leaves"),
    [
        ([], (0, "a"), None),
        ([("a0", 0, "a"), ("a1", 0, "a"), ("b0", 0, "b")], (0, "b"), None),
        ([("a0", 0, "a"), ("a1", 0, "a"), ("b0", 0, "b")], (0, "a"), None),
        ([("a0", 0, "a"), ("a1", 0, "a"), ("a2", 0, "a"), ("b0", 0, "b")], (0, "b"), "a2"),
        ([("a0", 0, "a"), ("a1", 0, "a"), ("b0", 0, "b")], (0, "new"), "a1"),
        ([("a0", 0, "a"), ("b0", 0, "b")], (0, "new"), None),
        ([("a0", 0, "a"), ("b0", 1, "b")], (0, "a"), None),
        ([("a0", 0, "a"), ("b0", 1, "b")], (2, "c"), None),
        ([("a0", 5, "a"), ("a1", -1000, "a"), ("a2", 0, "a"), ("b0", 1000, "b")], (0, "b"), "a0"),
        ([("a0", 5, "a"), ("a1", 5, "a"), ("b0", 1000, "b")], (-1000, "a"), "a1"),
        ([("a0", 5, "a"), ("a1", 5, "a"), ("b0", 1000, "b")], (5, "a"), None),
        ([("a0", -1000, "a"), ("a1", -1000, "a"), ("a2", -1000, "a")], (1000, "b"), "a2"),
    ],
)
def test_who_leaves_when_too_many_wait(
    waiting: list[tuple[str, int, str]], comes: tuple[int, str], leaves: str | None
) -> None:
    """Of the tenant with most, the last one by priority and arrival; None: the one that comes."""
    queue = FairQueue[str]()
    for item, priority, tenant in waiting:
        queue.push(item, priority, tenant, 1)
    assert queue.crowded_out(*comes) == leaves


def test_invented_names_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant per request leaves no trace beyond the bound, while another waits all the time."""
    monkeypatch.setattr(fair_queue, "TENANTS_KEPT", 8)
    queue = FairQueue[int]()
    queue.push(-1, 0, "steady", 10**9)
    queue.push(-2, 0, "steady", 1)
    queue.pop()
    for number in range(500):
        queue.push(number, 0, f"tenant {number}", 1)
        assert queue.pop() == number
    assert len(queue._clock._tags) <= 2 + 8 + 1
    for number in range(500):
        queue.push(number, 0, "fickle", 1)
        queue.remove(number)
    assert len(queue._heads) <= 2 + 8 + 1


class Waiting(RuleBasedStateMachine):
    """Against a list: each pushed item comes out once or is removed, in the order of its tenant and priority."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue[int]()
        self.known: dict[tuple[int, str], list[int]] = defaultdict(list)
        self.next = 0

    @rule(priority=st.integers(-1, 1), tenant=st.sampled_from("abc"), cost=costs)
    def push(self, priority: int, tenant: str, cost: int) -> None:
        self.queue.push(self.next, priority, tenant, cost)
        self.known[priority, tenant].append(self.next)
        self.next += 1

    @precondition(lambda self: any(self.known.values()))
    @rule()
    def pop(self) -> None:
        item = self.queue.pop()
        first: dict[str, tuple[int, int]] = {}
        for (priority, tenant), items in self.known.items():
            if items:
                first[tenant] = min(first.get(tenant, (priority, items[0])), (priority, items[0]))
        assert item in [head for _, head in first.values()]
        for items in self.known.values():
            if items and items[0] == item:
                items.pop(0)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        item = data.draw(st.integers(0, self.next))
        held = next((items for items in self.known.values() if item in items), None)
        assert self.queue.remove(item) == (held is not None)
        if held is not None:
            held.remove(item)

    @rule(priority=st.integers(-2, 2), tenant=st.sampled_from("abcd"))
    def crowd(self, priority: int, tenant: str) -> None:
        found = self.queue.crowded_out(priority, tenant)
        if found is not None:
            (own,) = [(key, items) for key, items in self.known.items() if found in items]
            assert found == own[1][-1]
            last, name = own[0]
            assert last == max(each for (each, of), items in self.known.items() if items and of == name)
            assert name != tenant or last > priority
            counts = Counter({of: self.queue.of_tenant(of) for of in "abcd"})
            counts[tenant] += 1
            assert counts[name] == max(counts.values())

    @invariant()
    def counts(self) -> None:
        assert len(self.queue) == sum(map(len, self.known.values()))
        assert self.queue.tenants == len({tenant for (_, tenant), items in self.known.items() if items})
        for tenant in "abc":
            assert self.queue.of_tenant(tenant) == sum(
                len(items) for (_, name), items in self.known.items() if name == tenant
            )


Waiting.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestWaiting = Waiting.TestCase


def test_a_tenant_with_dear_requests_is_served_less_often() -> None:
    """By the cost of what was served: ten cheap requests of one tenant for one of another that costs ten times more."""
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        queue.push(f"dear {number}", 0, "a", 10)
    for number in range(30):
        queue.push(f"cheap {number}", 0, "b", 1)
    order = [queue.pop().partition(" ")[0] for _ in range(33)]
    assert [order[:11].count("dear"), order[:22].count("dear"), order.count("dear")] == [1, 2, 3]

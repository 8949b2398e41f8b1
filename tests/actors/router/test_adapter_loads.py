"""The expected wait for an adapter that a worker has to load: what is left of it, and twice where another one goes."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from actors.router import adapter_loads
from actors.router.adapter_loads import LEARNED_PARTS, LOAD_MAX_US, LOAD_MIN_US, LOAD_US, NOTED_LOADS, AdapterLoads
from core.events import Adapter
from core.ids import WorkerId
from projections.folds.kv_fold import Member
from tests.projections.facts import joined

SQL = "sql@01"


def member(worker: str, *, cold: bool, others: int = 0, slots: int = 0) -> Member:
    adapters = [Adapter("sql", "01", 8, 1, cold=True if cold else UNSET)]
    adapters += [Adapter(f"law-{number}", "02", 8, 1) for number in range(others)]
    it = Member(WorkerId(worker))
    it.joined = replace(joined(), adapters=tuple(adapters), adapter_slots=slots or UNSET)
    return it


def test_only_workers_that_have_to_load_it() -> None:
    """By id; twice where the slots are taken; another digest is another adapter."""
    workers = [
        member("d", cold=True, others=2, slots=2),
        member("c", cold=True, others=1, slots=2),
        member("b", cold=False),
        member("a", cold=True),
    ]
    loads = AdapterLoads()
    assert [*loads.waits_us(workers, SQL, 5).items()] == [("a", LOAD_US), ("c", LOAD_US), ("d", 2 * LOAD_US)]
    assert loads.waits_us(workers, "sql@02", 5) == {}


def test_a_load_under_way() -> None:
    """Counts with what is left of it from its first request on; nothing once it should be over, and anew when it must
    have failed."""
    loads, a = AdapterLoads(), member("a", cold=True, others=1, slots=1)
    assert loads.note(a, SQL, 1000)
    assert loads.note(a, SQL, 2000)
    assert loads.waits_us([a], SQL, 1000 + LOAD_US // 4) == {"a": LOAD_US - LOAD_US // 4}
    assert loads.waits_us([a], SQL, 1000 + LOAD_US) == {}
    assert loads.waits_us([a], SQL, 1001 + NOTED_LOADS * LOAD_US) == {"a": 2 * LOAD_US}
    assert loads.note(a, SQL, 1001 + NOTED_LOADS * LOAD_US)
    assert loads.waits_us([a], SQL, 1001 + NOTED_LOADS * LOAD_US) == {"a": LOAD_US}


def test_the_duration_is_learned() -> None:
    """Of loads that a request began, one quarter of each, within bounds."""
    loads, a = AdapterLoads(), member("a", cold=True)
    fresh = [member("b", cold=True)]
    loads.note(a, SQL, 1000)
    loads.note(a, SQL, 2000)
    loads.learn(a.worker, SQL, 2000, 9)
    assert loads.waits_us(fresh, SQL, 0) == {"b": LOAD_US}
    loads.learn(a.worker, SQL, 1000, 100_000)
    assert loads.waits_us(fresh, SQL, 0) == {"b": 400_000}
    for _ in range(100):
        loads.learn(a.worker, SQL, 1000, -5)
    assert loads.waits_us(fresh, SQL, 0)[WorkerId("b")] in range(LOAD_MIN_US, LOAD_MIN_US + LEARNED_PARTS)
    for _ in range(100):
        loads.learn(a.worker, SQL, 1000, 10**12)
    assert loads.waits_us(fresh, SQL, 0)[WorkerId("b")] in range(LOAD_MAX_US - LEARNED_PARTS, LOAD_MAX_US + 1)


def test_the_log_has_its_end() -> None:
    """Then an eviction and the next load count in full."""
    loads = AdapterLoads()
    cold, warm = member("a", cold=True), member("a", cold=False)
    assert loads.note(cold, SQL, 0)
    assert not loads.note(warm, SQL, 10)
    assert loads.waits_us([cold], SQL, 20) == {"a": LOAD_US}
    assert loads.note(cold, SQL, 30)
    assert loads.waits_us([warm], SQL, 40) == {}
    assert loads.waits_us([cold], SQL, 50) == {"a": LOAD_US}
    assert not loads.note(None, SQL, 30)


def test_notes_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """NOTED_MAX: the oldest is forgotten."""
    monkeypatch.setattr(adapter_loads, "NOTED_MAX", 2)
    loads = AdapterLoads()
    workers = [member(worker, cold=True) for worker in "abc"]
    for each in workers:
        loads.note(each, SQL, 0)
    assert loads.waits_us(workers, SQL, LOAD_US // 2) == {"a": LOAD_US, "b": LOAD_US // 2, "c": LOAD_US // 2}

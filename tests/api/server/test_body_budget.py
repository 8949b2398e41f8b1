"""Memory for bodies: bounded, shared by tenants, and given back."""

from __future__ import annotations

import asyncio

import pytest

import api.server.body_budget
from api.server.body_budget import FREE_BYTES_MAX, BodyBudget, BodyLease
from api.server.caller import CALLER, Caller
from api.server.errors import ApiError

MIB = 1024 * 1024


async def test_what_is_free_is_taken_at_once_and_the_rest_waits_in_order() -> None:
    budget, order = BodyBudget(4 * MIB), list[str]()

    async def body(name: str, size: int) -> None:
        await budget.acquire(size, None)
        order.append(name)

    await body("first", 3 * MIB)
    waiting = [asyncio.create_task(body(name, 2 * MIB)) for name in ("second", "third", "fourth")]
    await asyncio.sleep(0)
    assert order == ["first"]
    assert repr(budget) == f"<BodyBudget {3 * MIB} of {4 * MIB} bytes held, 3 waiting>"
    budget.release(3 * MIB, None)
    await asyncio.wait(waiting, timeout=0.05)
    assert order == ["first", "second", "third"]
    budget.release(2 * MIB, None)
    await waiting[2]
    assert budget.held == 4 * MIB


async def test_a_tenant_has_half_at_most() -> None:
    """Others are read meanwhile, though they came later."""
    budget = BodyBudget(4 * MIB)
    await budget.acquire(2 * MIB, "greedy")
    greedy = asyncio.create_task(budget.acquire(MIB, "greedy"))
    await asyncio.sleep(0)
    await budget.acquire(MIB, "other")
    assert not greedy.done()
    budget.release(MIB * 2, "greedy")
    await greedy
    assert budget.held == 2 * MIB


async def test_a_body_waits_so_long_and_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.server.body_budget, "WAIT_S", 0.02)
    budget = BodyBudget(MIB)
    await budget.acquire(MIB, None)
    with pytest.raises(ApiError, match="too many large request bodies") as refused:
        await budget.acquire(MIB, None)
    assert (refused.value.status, refused.value.code, refused.value.headers) == (
        503,
        "overloaded",
        {"retry-after": "1"},
    )
    budget.release(MIB, None)
    assert budget.held == 0


async def test_a_request_that_ends_while_it_waits_takes_nothing() -> None:
    """Also if bytes become free in the moment in which it ends."""
    budget = BodyBudget(MIB)
    await budget.acquire(MIB, None)
    ended, last = (asyncio.create_task(budget.acquire(MIB, None)) for _ in range(2))
    await asyncio.sleep(0)
    ended.cancel()
    budget.release(MIB, None)
    await last
    assert ended.cancelled() or await asyncio.wait([ended])
    assert budget.held == MIB
    budget.release(MIB, None)
    late = asyncio.create_task(budget.acquire(MIB, None))
    await late
    budget.release(MIB, None)
    assert budget.held == 0


async def test_a_lease_counts_long_bodies_for_their_tenant_and_ends_with_its_block() -> None:
    budget = BodyBudget(4 * MIB)
    CALLER.set(Caller("key", "team"))
    try:
        with BodyLease(budget) as lease:
            await lease.grow(FREE_BYTES_MAX)
            assert budget.held == 0
            await lease.grow(2 * MIB)
            assert repr(lease) == f"<BodyLease of {2 * MIB} bytes>"
            second = BodyLease(budget)
            waiting = asyncio.create_task(second.grow(MIB))
            await asyncio.sleep(0)
            assert not waiting.done()
            lease.shrink(MIB)
            await waiting
            second.shrink(0)
            assert budget.held == MIB
        assert budget.held == 0
    finally:
        CALLER.set(None)

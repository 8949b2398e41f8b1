"""Erasure: the blocks of one tenant are erased from the pools of a deployment, each by its keeper.

A keeper erases some thousand blocks at a call, and says how many are left. So a command that is killed has erased what
it has; run again, it goes on. When a keeper finds none, the command waits SETTLE_S and asks once more: engines may have
been writing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from actors.transport.frames import BlocksErased, EraseBlocks
from api.cli.kv.pool_search import COMMAND, FoundPool, Keeper, find_pools
from api.cli.quantities import count_text
from api.cli.worker_link import worker_link
from api.config.deployment_ref import DeploymentRef
from core.errors import PeerError

SETTLE_S = 3.0
"""Between the last erasure and the last look: engines write the blocks that waited for that, and name them."""
KEEPER_WAIT_S = 20.0
"""Longest wait for a keeper: longer than the lease of one that died, and than the next one takes to open the pool."""
KEEPER_PAUSE_S = 1.0
ROUNDS_MAX = 10
"""Rounds that find further blocks, of a tenant that goes on sending requests."""


class ErasedPool(msgspec.Struct, frozen=True):
    """The blocks that were erased from one pool."""

    pool: str
    tier: str
    keeper: str
    """Name of the worker that keeps the pool; empty if there was none."""
    blocks: int = 0
    bytes_: int = msgspec.field(default=0, name="bytes")
    failed: int = 0
    """Blocks that could not be removed."""
    fault: str = ""
    """The reason why the erasure ended before all were gone; empty if they are."""


class ErasedTenant(NamedTuple):
    """The tenant whose blocks are to be erased."""

    digest: bytes
    unknown: bool
    """Blocks of which no tenant is known go, too."""


Report = Callable[[int], None]
"""Gets how many blocks were erased since its last call."""


async def erase_from(connection: DeploymentRef, pool: FoundPool, tenant: ErasedTenant, report: Report) -> ErasedPool:
    """No block of the tenant lies in the pool, or `fault` says why not."""
    done = ErasedPool(pool.pool, pool.tier, pool.keeper.name if pool.keeper else "")
    keeper, waited_s = pool.keeper, 0.0
    while True:
        fault = f"no worker keeps the pool within {KEEPER_WAIT_S:g} s: run the command again"
        if keeper is not None:
            done = msgspec.structs.replace(done, keeper=keeper.name)
            try:
                return await _erase(connection, keeper, done, tenant, report)
            except _Interrupted as interrupted:
                done, fault = interrupted.done, interrupted.fault
        if waited_s >= KEEPER_WAIT_S:
            return msgspec.structs.replace(done, fault=fault)
        await asyncio.sleep(KEEPER_PAUSE_S)
        waited_s += KEEPER_PAUSE_S
        keeper = next((each.keeper for each in (await find_pools(connection)).pools if each.pool == pool.pool), None)


class _Interrupted(Exception):
    """The keeper went, or could not go on: it may be another one now."""

    def __init__(self, done: ErasedPool, fault: str) -> None:
        super().__init__(fault)
        self.done = done
        self.fault = fault


async def _erase(
    connection: DeploymentRef, keeper: Keeper, done: ErasedPool, tenant: ErasedTenant, report: Report
) -> ErasedPool:
    frame = EraseBlocks(pool=done.pool, tenant=tenant.digest, unknown=tenant.unknown)
    try:
        async with worker_link(connection, *keeper, COMMAND) as link:
            for number in range(ROUNDS_MAX):
                if number:
                    await asyncio.sleep(SETTLE_S)
                before = done.blocks
                while True:
                    answer = await link.erase(frame)
                    done = _added(done, answer)
                    report(answer.blocks)
                    if answer.fault:
                        raise _Interrupted(done, answer.fault)
                    if answer.failed:
                        left = count_text(done.failed, "block")
                        return msgspec.structs.replace(done, fault=f"{left} cannot be removed")
                    if not answer.blocks:
                        break
                if number and done.blocks == before:
                    return done
    except (PeerError, TimeoutError) as error:
        raise _Interrupted(done, str(error) or "the keeper did not answer in time") from error
    return msgspec.structs.replace(done, fault="the tenant's requests go on, and their blocks are stored again")


def _added(done: ErasedPool, answer: BlocksErased) -> ErasedPool:
    return msgspec.structs.replace(
        done,
        blocks=done.blocks + answer.blocks,
        bytes_=done.bytes_ + answer.size_bytes,
        failed=done.failed + answer.failed,
    )

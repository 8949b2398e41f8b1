"""Pool search: the pools of a deployment, which worker keeps each, and the blocks of each tenant in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from actors.membership.registration import Registration
from actors.transport.frames import PoolContent, PoolTenant
from api.cli.worker_link import decode_workers, worker_link
from api.config.deployment_ref import DeploymentRef
from core.errors import PeerError
from core.ids import WorkerId

COMMAND = "kv"
ASKED_AT_ONCE_MAX = 64
"""Workers that are asked in parallel; the rest wait for their turn."""


class Unanswered(msgspec.Struct, frozen=True):
    """A worker whose pool is not known."""

    worker: str
    why: str


class Keeper(NamedTuple):
    """The worker that keeps a pool."""

    worker: WorkerId
    about: Registration

    @property
    def name(self) -> str:
        """Its name, which it keeps over restarts."""
        return self.about.name or self.worker


class FoundPool(NamedTuple):
    """A pool that workers have."""

    pool: str
    tier: str
    keeper: Keeper | None
    """None if no worker keeps it now."""
    workers: tuple[str, ...]
    """Names of the workers that read and write it."""
    tenants: tuple[PoolTenant, ...]
    """Empty without a keeper."""

    def blocks_of(self, digests: Iterable[bytes]) -> int:
        """The number of blocks of these tenants."""
        chosen = {*digests}
        return sum(each.blocks for each in self.tenants if each.tenant in chosen)


class PoolSearch(NamedTuple):
    """All pools, by their ids, and the workers that did not answer."""

    pools: list[FoundPool]
    unanswered: list[Unanswered]


class _Answer(NamedTuple):
    keeper: Keeper
    content: PoolContent


async def find_pools(connection: DeploymentRef) -> PoolSearch:
    """The pools of all registered workers. Unavailable if the registry is away."""
    turns = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def ask(worker: Keeper) -> _Answer | Unanswered:
        async with turns:
            try:
                return _Answer(worker, await _content(connection, worker))
            except (PeerError, TimeoutError) as error:
                return Unanswered(worker.name, str(error) or "it did not answer in time")

    workers = [Keeper(*each) for each in (await decode_workers(connection)).items()]
    found = await asyncio.gather(*map(ask, sorted(workers, key=lambda each: (each.name, each.worker))))
    answers = [each for each in found if isinstance(each, _Answer)]
    faults = [Unanswered(each.keeper.name, each.content.fault) for each in answers if each.content.fault]
    by_pool: dict[str, list[_Answer]] = {}
    for each in answers:
        if each.content.pool:
            by_pool.setdefault(each.content.pool, []).append(each)
    return PoolSearch(
        [_pool(pool, by_pool[pool]) for pool in sorted(by_pool)],
        [*(each for each in found if isinstance(each, Unanswered)), *faults],
    )


async def _content(connection: DeploymentRef, worker: Keeper) -> PoolContent:
    async with worker_link(connection, *worker, COMMAND) as link:
        return await link.pool()


def _pool(pool: str, answers: list[_Answer]) -> FoundPool:
    kept = next((each for each in answers if each.content.kept), None)
    return FoundPool(
        pool,
        answers[0].content.tier,
        None if kept is None else kept.keeper,
        tuple(each.keeper.name for each in answers),
        () if kept is None else tuple(kept.content.tenants),
    )

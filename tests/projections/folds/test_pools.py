"""Pools in the folds: a source of their own, which counts for the workers that read it while its keeper lives."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import structs

from core.events import CacheCleared, Event, PoolLeft, PoolLost, WorkerJoined, WorkerLeft, WorkerLost
from core.ids import LOST_SUFFIX, WorkerId
from core.prompt import Prompt, hashes_from_bytes
from core.settings import APPROXIMATE, RoutingSettings
from projections.folds.snapshot import SNAPSHOT_VERSION_WITHOUT_ADAPTERS, decode, encode
from projections.folds.state import PoolReader
from tests.projections.facts import (
    joined,
    pool_joined,
    prompt,
    reads,
    removed,
    removed_chain,
    restated,
    stored,
    stored_chain,
    worker_id,
)
from tests.projections.site import KV, Site
from tests.projections.speaker import CHAIN_KEY, Speaker

A, B = WorkerId(worker_id(1)), WorkerId(worker_id(2))
POOL, SOURCE, NEXT = "f0" * 8, WorkerId("51" * 8), WorkerId("52" * 8)
PROMPT = prompt(*range(40))
HASHES = hashes_from_bytes(PROMPT.hashes())


def reader(name: str = "decode-0", pool: str = POOL, kind: str = "kind", load_blocks: int = 500) -> WorkerJoined:
    return structs.replace(joined(name), pools=reads(pool, kind, load_blocks))


def kept(*, load_blocks: int = 500, blocks: int = 20) -> Site:
    """A worker that keeps a pool with the first blocks of the prompt."""
    site = Site()
    site.say(KV, A, reader(load_blocks=load_blocks))
    site.say(KV, SOURCE, pool_joined(POOL, A), stored(*HASHES[:blocks], tier="disk"))
    return site


def levels(site: Site, worker: str = A, given: Prompt = PROMPT) -> tuple[int, ...]:
    return site.state.reported(given).get(WorkerId(worker), (0,) * 4)


def test_a_pool_is_the_last_level_of_its_worker() -> None:
    """Behind what the worker has itself, whichever goes further."""
    site = kept()
    assert levels(site) == (0, 0, 20, 20)
    site.cache(A, PROMPT, 5)
    site.cache(A, PROMPT, 8, tier="host", skip=5)
    assert levels(site) == (5, 8, 20, 20)
    site.cache(A, PROMPT, 30, tier="host", skip=8)
    assert levels(site) == (5, 30, 30, 30)
    assert site.state.reported(PROMPT, pools=False)[A] == (5, 30, 30, 30)
    site.say(KV, SOURCE, removed(*HASHES[3:20], tier="disk"))
    assert levels(site) == (5, 30, 30, 30)
    assert levels(site, given=prompt(0, 1, 2, 99, 98)) == (3, 3, 3, 3)


@pytest.mark.parametrize(
    ("load_blocks", "device", "host", "reached"),
    [(6, 0, 0, 6), (6, 4, 4, 10), (6, 4, 7, 13), (6, 4, 16, 16), (6, 4, 12, 16), (50, 4, 7, 20), (0, 4, 7, 7)],
)
def test_no_more_than_the_worker_takes_at_once(load_blocks: int, device: int, host: int, reached: int) -> None:
    """So many blocks from the pool, and twice as many from pool and host together."""
    site = kept(load_blocks=load_blocks)
    site.cache(A, PROMPT, device)
    site.cache(A, PROMPT, host, tier="host", skip=device)
    assert levels(site) == (device, host, reached, reached)


def test_only_equal_kinds_share() -> None:
    """A worker with other weights finds nothing there, nor does one that reads another pool, or none."""
    site = kept()
    site.say(KV, B, reader("decode-1"))
    site.say(KV, worker_id(3), reader("decode-2", kind="other"))
    site.say(KV, worker_id(4), reader("decode-3", pool="f1" * 8))
    site.say(KV, worker_id(5), joined("decode-4"))
    assert site.state.pool_readers() == [PoolReader(A, SOURCE, 500), PoolReader(B, SOURCE, 500)]
    assert [levels(site, worker_id(number))[2] for number in range(1, 6)] == [20, 20, 0, 0, 0]


@pytest.mark.parametrize("end", [WorkerLeft(reason="stopped"), WorkerLost(by="", reason="")], ids=["left", "lost"])
def test_a_pool_counts_while_its_keeper_lives(end: Event) -> None:
    """It waits for the next life, which keeps it as another source; the other readers get it back then."""
    site = kept()
    site.say(KV, B, reader("decode-1"))
    said = Speaker(KV, A + LOST_SUFFIX, about=A).say(end) if isinstance(end, WorkerLost) else None
    _ = site.say(KV, A, end) if said is None else site.hear(said)
    assert (levels(site), levels(site, B)) == ((0,) * 4, (0,) * 4)
    assert site.state.pool_readers() == []
    life = WorkerId(worker_id(9))
    site.say(KV, life, reader())
    site.say(KV, NEXT, pool_joined(POOL, life), restated(0, 1, *HASHES[:7], tier="disk"))
    assert (levels(site, life)[2], levels(site, B)[2]) == (7, 7)
    site.hear(Speaker(KV, SOURCE + LOST_SUFFIX, about=SOURCE).say(PoolLost(by="", reason="its keeper is gone")))
    assert [pool.worker for pool in site.state.pools()] == [NEXT]
    assert site.state.kv[KV].ended[SOURCE] == "lost: its keeper is gone"
    assert site.state.index.blocks(SOURCE, "disk") == 0


def test_a_worker_goes_by_the_source_that_it_keeps() -> None:
    """While an earlier keeper of the same pool is not known as lost."""
    site = kept()
    site.say(KV, B, reader("decode-1"))
    site.say(KV, NEXT, pool_joined(POOL, B), stored(*HASHES[:3], tier="disk"))
    site.say(KV, worker_id(3), reader("decode-2"))
    assert (levels(site)[2], levels(site, B)[2], levels(site, worker_id(3))[2]) == (20, 3, 20)


def test_an_older_keeper_of_a_shared_pool_counts_no_more() -> None:
    """Not even for its own worker, nor while the newer keeper's worker is dead, until the newer one's source ends."""
    site = Site()
    site.say(KV, A, reader())
    site.say(KV, B, reader("decode-1"))
    site.say(KV, SOURCE, structs.replace(pool_joined(POOL, A), fence=5), stored(*HASHES[:20], tier="disk"))
    assert (levels(site)[2], levels(site, B)[2]) == (20, 20)
    site.say(KV, NEXT, structs.replace(pool_joined(POOL, B), fence=9), stored(*HASHES[:3], tier="disk"))
    assert (levels(site)[2], levels(site, B)[2]) == (3, 3)
    assert site.state.pool_readers() == [PoolReader(A, NEXT, 500), PoolReader(B, NEXT, 500)]
    site.hear(Speaker(KV, B + LOST_SUFFIX, about=B).say(WorkerLost(by="", reason="")))
    assert levels(site) == (0,) * 4
    site.hear(Speaker(KV, NEXT + LOST_SUFFIX, about=NEXT).say(PoolLost(by="", reason="")))
    assert levels(site)[2] == 20


def test_a_pool_ends_with_all_its_blocks() -> None:
    """What follows on its subject is nothing."""
    site = kept()
    site.say(KV, SOURCE, PoolLeft(reason="stopped"))
    assert levels(site) == (0,) * 4
    site.say(KV, SOURCE, stored(*HASHES, tier="disk"))
    assert levels(site) == (0,) * 4


def test_a_gap_voids_the_pool_until_it_is_restated() -> None:
    """As it does a worker's cache; the replica knows whom to ask."""
    site = kept()
    lost = site._speakers[KV, SOURCE]
    lost.say(removed(*HASHES[10:20], tier="disk"))
    site.say(KV, SOURCE, stored(*HASHES[20:25], tier="disk"))
    assert levels(site) == (0,) * 4
    assert site.state.unknown() == [SOURCE]
    site.say(KV, SOURCE, pool_joined(POOL, A), restated(0, 1, *HASHES[:10], tier="disk"))
    assert levels(site) == (0, 0, 10, 10)
    assert site.state.unknown() == []
    site.say(KV, SOURCE, CacheCleared())
    assert levels(site) == (0,) * 4


def identity(source: WorkerId, event: Event) -> int:
    """The part of the digest that says what the source is; heads of chains differ in any case."""
    site = Site()
    site.say(KV, source, event)
    return site.state.kv[KV].members[source].identity


def test_pools_are_in_the_digest() -> None:
    """All that they say of themselves, and their blocks; an end leaves the digest of a log without them."""
    said = pool_joined(POOL, A)
    others = [structs.replace(said, **{name: "other"}) for name in ("pool", "keeper", "name", "model", "kind")] + [
        structs.replace(said, block_size=8),
        structs.replace(said, partition=1),
        structs.replace(said, fence=7),
        structs.replace(said, fence=8),
    ]
    assert len({identity(SOURCE, each) for each in (said, *others)}) == len(others) + 1
    reading = [joined(), reader(), reader(pool="f1" * 8), reader(kind="other"), reader(load_blocks=1)]
    assert len({identity(A, each) for each in reading}) == len(reading)
    site = Site()
    site.say(KV, A, joined())
    before = site.state.kv[KV].digest
    site.say(KV, SOURCE, said, stored(*HASHES, tier="disk"))
    assert site.state.kv[KV].digest != before
    site.say(KV, SOURCE, PoolLeft(reason=""))
    assert site.state.kv[KV].digest == before


def test_a_snapshot_has_the_pools() -> None:
    """In a form that readers of earlier ones refuse; what follows goes on from it."""
    site = kept()
    site.say(KV, B, reader("decode-1"))
    content = b"".join(encode(site.state))
    assert (
        msgspec.msgpack.decode(content[16 : 16 + int.from_bytes(content[8:16], "little")])["v"]
        == SNAPSHOT_VERSION_WITHOUT_ADAPTERS
    )
    again = decode(CHAIN_KEY, content)
    assert (again.digest, again.pool_readers()) == (site.state.digest, site.state.pool_readers())
    assert b"".join(encode(again)) == content
    assert again.kv[KV].pools_read
    site.state.become(again)
    site.say(KV, SOURCE, removed(*HASHES[15:20], tier="disk"))
    assert levels(site, B)[2] == 15


def test_runs_of_blocks_are_pools_blocks_too() -> None:
    """Told with their places, as a keeper tells them."""
    site = Site()
    site.say(KV, A, reader())
    column = structs.replace(stored_chain(*HASHES), tier="disk")
    site.say(KV, SOURCE, pool_joined(POOL, A), column)
    assert levels(site)[2] == len(HASHES)
    site.say(KV, SOURCE, structs.replace(removed_chain(*HASHES, first=33), tier="disk"))
    assert levels(site)[2] == 33


def test_the_level_has_its_credit() -> None:
    """A worker with the prompt on its disk is chosen before one without, and after one with it on its host."""
    site = kept(blocks=40)
    site.say(KV, B, joined("decode-1"))
    for policy in ("kv", "time"):
        settings = RoutingSettings(policy=policy, prefill_us_per_token_m=20_000)
        decision = site.decide(PROMPT, settings)
        assert (decision.worker, decision.predicted_cached_tokens) == (A, 40 * PROMPT.block_size)
        assert decision.ranked[0].prefill_m < decision.ranked[1].prefill_m
    approximate = site.decide(PROMPT, RoutingSettings(policy=APPROXIMATE))
    assert approximate.predicted_cached_tokens == 0
    site.cache(B, PROMPT, 40, tier="host")
    assert site.decide(PROMPT, RoutingSettings(policy="kv")).worker == B


def test_a_remote_pool_is_behind_the_disk() -> None:
    """It counts on the level of its tier, and no more of both at once than of one."""
    site = kept(load_blocks=12, blocks=6)
    remote = WorkerId("53" * 8)
    site.say(
        KV,
        A,
        structs.replace(reader(load_blocks=12), pools=structs.replace(reads(POOL, "kind", 12), ids=(POOL, "f1" * 8))),
    )
    site.say(KV, remote, pool_joined("f1" * 8, A), stored(*HASHES[:20], tier="remote"))
    assert levels(site) == (0, 0, 6, 12)
    site.cache(A, PROMPT, 3)
    assert levels(site) == (3, 3, 6, 15)
    site.say(KV, SOURCE, removed(*HASHES[:6], tier="disk"))
    assert levels(site) == (3, 3, 3, 15)

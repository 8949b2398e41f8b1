"""A pool in a simulation: the log has its events, decisions see its blocks, and each follows from the log."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec import UNSET

from actors.kv_blocks.catalog_records import CatalogEntry
from core.errors import CallerError
from core.events import (
    BlocksRemoved,
    BlocksStored,
    CacheRestated,
    PoolJoined,
    PoolLeft,
    PoolLost,
    RequestRouted,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from core.events.routing import PrefixFetch
from core.ids import RequestId, WorkerId
from core.prompt import hashes_from_bytes, hashes_to_bytes
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.scaling.scale_settings import ScaleSettings
from replay.recording.recording import Recording
from replay.simulate.options import Options, WorkerLife
from replay.simulate.report import report
from replay.simulate.simulated_log import KEY, KV, NAMESPACE, START_MS, SimulatedLog
from replay.simulate.simulated_pool import SimulatedPool
from replay.simulate.simulation import SimulationResult, simulate
from replay.simulate.virtual_time import Agenda
from replay.simulate.workload import Arrival
from replay.verify.verify import verify
from streams.archive.archive_writer import ArchiveWriter
from tests.replay.simulate.families import BLOCK_SIZE, ENGINE, families
from tests.replay.simulate.said import Said, said

SMALL = dataclasses.replace(ENGINE, capacity_blocks=24, host_blocks=60, host_us_per_block=200)
"""Nine families of prompts fit into neither tier of a worker."""
TINY = dataclasses.replace(SMALL, host_blocks=30)
POOL = Options(workers=4, engine=SMALL, pool_blocks=4000, pool_us_per_block=300)


def cached(found: SimulationResult) -> int:
    return sum(each.cached_tokens for each in found.served)


def pool_events(path: Path) -> list[Said]:
    """Those of the pools alone."""
    found = said(path, KV)
    sources = {each.owner for each in found if isinstance(each.event, PoolJoined)}
    return [each for each in found if each.owner in sources]


def test_what_one_worker_computed_another_reads(tmp_path: Path) -> None:
    """Each family comes to each worker. More is cached than with the hosts alone, and what decisions expected is
    there, one request at a time."""
    turns = dataclasses.replace(POOL, routing=RoutingSettings(policy="round-robin"), engine=TINY)
    alone = simulate(dataclasses.replace(turns, pool_blocks=0), families(120, every_us=200_000))
    found = simulate(turns, families(120, every_us=200_000), archive=tmp_path / "log")
    assert alone.pool is None
    assert found.pool is not None
    assert found.pool.loads > 50
    assert cached(found) > cached(alone) * 1.1
    assert all(each.predicted_tokens <= each.cached_tokens for each in found.served)
    joined = [event for _, _, event in said(tmp_path / "log", KV) if isinstance(event, WorkerJoined)]
    (pool,) = [event for _, _, event in pool_events(tmp_path / "log") if isinstance(event, PoolJoined)]
    for each in joined:
        assert each.pools is not UNSET
        assert (each.pools.ids, each.pools.kind, each.pools.load_blocks) == ((pool.pool,), pool.kind, 15)
    assert (pool.block_size, pool.fence, len(pool.kind)) == (BLOCK_SIZE, 1, 32)
    text = report(found.served, 4, pool=found.pool).pool
    assert text is not UNSET
    assert text.loads == found.pool.loads


def test_blocks_are_announced_closed_under_prefixes_with_the_keepers_delay(tmp_path: Path) -> None:
    """What came within a second is announced with one listing, a second or two after it was stored."""
    simulate(POOL, families(60, every_us=100_000), archive=tmp_path / "log")
    announced: dict[int, int] = {}
    for at_ms, _, event in pool_events(tmp_path / "log"):
        if isinstance(event, BlocksStored):
            assert event.tier == "disk"
            assert event.parent is None or event.parent in announced
            announced |= dict.fromkeys(hashes_from_bytes(event.hashes), at_ms)
    assert max(at_ms % 1000 for at_ms in announced.values()) < 50, "listings take some time, too"
    stored: dict[int, int] = {}
    for at_ms, _, event in said(tmp_path / "log", KV):
        if isinstance(event, BlocksStored) and event.tier == "device":
            for name in hashes_from_bytes(event.hashes):
                stored.setdefault(name, at_ms)
    late = [at - stored[name] for name, at in announced.items()]
    assert len(late) > 50
    assert min(late) > 0
    assert max(late) <= 2100


def test_a_block_leaves_the_index_before_its_file_goes(tmp_path: Path) -> None:
    """In a pool that is full all the time; what the log has at the end lies there."""
    small = dataclasses.replace(POOL, pool_blocks=64)
    found = simulate(small, families(300, every_us=100_000), archive=tmp_path / "log")
    assert found.pool is not None
    assert found.pool.evictions > 5
    assert found.pool.stores - found.pool.evictions <= 64
    held: set[int] = set()
    for _, _, event in pool_events(tmp_path / "log"):
        if isinstance(event, BlocksStored):
            held |= {*hashes_from_bytes(event.hashes)}
        elif isinstance(event, BlocksRemoved):
            assert held >= {*hashes_from_bytes(event.hashes)}
            held -= {*hashes_from_bytes(event.hashes)}
        assert len(held) <= 64
    with Recording.open(tmp_path / "log", KEY) as recording:
        assert verify(recording).different == 0


@pytest.mark.parametrize("pool", ["shared", "own"])
def test_every_decision_over_a_pool_follows_from_the_log(tmp_path: Path, pool: str) -> None:
    """With replicas that lag, and workers that fail, keepers among them."""
    options = dataclasses.replace(POOL, replicas=2, lag_ms=20, failures_per_hour=2400)
    if pool == "own":
        engine = dataclasses.replace(SMALL, disk_blocks=4000, disk_us_per_block=300)
        options = dataclasses.replace(options, pool_blocks=0, engine=engine)
    simulate(options, families(150, every_us=300_000), archive=tmp_path / "log")
    with Recording.open(tmp_path / "log", KEY) as recording:
        proved = verify(recording)
    routed = [event for _, _, event in said(tmp_path / "log", ROUTING) if isinstance(event, RequestRouted)]
    assert proved.proof.holds
    assert (proved.verified, proved.different) == (len(routed), 0)
    assert sum(event.columns["overlap_all"][0] > 0 for event in routed if event.expects_load) > 5
    events = [event for _, _, event in pool_events(tmp_path / "log")]
    joined = [event for event in events if isinstance(event, PoolJoined)]
    lost = [event for event in events if isinstance(event, PoolLost)]
    failed = [event for _, _, event in said(tmp_path / "log", KV) if isinstance(event, WorkerLost)]
    assert len({event.keeper for event in joined}) == len(joined) > 1
    if pool == "own":
        assert {event.fence for event in joined} == {UNSET}
        assert len({event.pool for event in joined}) == 4
        assert len(lost) == len(failed) > 2
    else:
        assert [event.fence for event in joined] == list(range(1, len(joined) + 1))
        assert len({event.pool for event in joined}) == 1
        assert len(joined) - 1 <= len(lost)
    assert any(isinstance(event, CacheRestated) for event in events), "the next keeper announces what lies there"


def test_the_log_has_a_removal_before_the_file_goes(tmp_path: Path) -> None:
    """A quarter of a second before; a block that is used meanwhile stays, and is announced again."""
    path, agenda = tmp_path / "log", Agenda()
    writer = ArchiveWriter(path, NAMESPACE, KEY.chain_key, "test", START_MS)
    pool = SimulatedPool("pool", 32, agenda, SimulatedLog(agenda, writer), shared=False, block_size=BLOCK_SIZE)
    worker, lying = WorkerId("a" * 16), dict[int, list[int]]()
    pool.on_worker_joined(worker, "worker")

    def write(names: list[int], end_us: int) -> None:
        for name, parent in zip(names, [None, *names], strict=False):
            while not pool.files.write(worker, CatalogEntry(name, parent), 0, end_us):
                pool.files.grant([worker], agenda.now_us)

    write([*range(1, 29)], 500_000)
    agenda.put(1_500_000, lambda: write([101, 102], 1_900_000))
    agenda.put(2_100_000, lambda: pool.files.touch([*range(1, 28)], 2_100_000))
    for at_us in (2_240_000, 2_260_000):
        agenda.put(at_us, lambda: lying.update({agenda.now_us: [name for name in (27, 28) if name in pool.files]}))
    agenda.put(3_500_000, lambda: None)
    while agenda.now_us < 3_500_000:
        assert agenda.advance()
    writer.finish(writer.contents(START_MS, START_MS + 3_500))
    assert lying == {2_240_000: [27, 28], 2_260_000: [27]}
    changes = [
        (at_ms // 100, type(event), sorted(hashes_from_bytes(event.hashes)))
        for at_ms, _, event in pool_events(path)
        if isinstance(event, BlocksStored | BlocksRemoved)
    ]
    assert changes == [
        (10, BlocksStored, [*range(1, 29)]),
        (20, BlocksRemoved, [27, 28]),
        (20, BlocksStored, [101, 102]),
        (30, BlocksRemoved, [102]),
        (30, BlocksStored, [27]),
    ]


def test_a_keeper_that_leaves_hands_the_pool_over(tmp_path: Path) -> None:
    """Another worker announces what lies there, within seconds, and under a higher fence."""
    path, agenda = tmp_path / "log", Agenda()
    writer = ArchiveWriter(path, NAMESPACE, KEY.chain_key, "test", START_MS)
    pool = SimulatedPool("pool", 100, agenda, SimulatedLog(agenda, writer), shared=True, block_size=BLOCK_SIZE)
    first, second = WorkerId("a" * 16), WorkerId("b" * 16)
    pool.on_worker_joined(first, "first")
    pool.on_worker_joined(second, "second")
    for name, parent in ((1, None), (2, 1), (4, 3)):
        assert pool.files.write(first, CatalogEntry(name, parent), 0, 500_000)
    agenda.put(2_500_000, lambda: pool.on_worker_ended(first))
    agenda.put(2_500_000, lambda: pool.on_worker_left(first, "draining"))
    agenda.put(9_000_000, lambda: None)
    while agenda.now_us < 9_000_000:
        assert agenda.advance()
    writer.finish(writer.contents(START_MS, START_MS + 9_000))
    found = pool_events(path)
    assert [type(event) for _, _, event in found] == [PoolJoined, BlocksStored, PoolLeft, PoolJoined, CacheRestated]
    assert [at_ms // 100 for at_ms, _, _ in found] == [0, 10, 25, 55, 55]
    assert [getattr(event, "fence", 0) for _, _, event in found] == [1, 0, 0, 2, 0]
    for _, _, event in found:
        if isinstance(event, BlocksStored | CacheRestated):
            assert hashes_from_bytes(event.hashes) == [1, 2], "closed under prefixes"
    assert [event.keeper for _, _, event in found if isinstance(event, PoolJoined)] == [first, second]
    assert found[3].owner != found[0].owner


def test_workers_that_leave_end_the_announcements_of_their_own_disks(tmp_path: Path) -> None:
    """As a planner's fleet shrinks."""
    planner = ScaleSettings(ttft_ms=60_000, itl_ms=60_000, max=4, period_s=5, startup_s=5, down_window_s=10)
    engine = dataclasses.replace(SMALL, disk_blocks=400)
    options = dataclasses.replace(POOL, pool_blocks=0, engine=engine, planner=planner)
    simulate(options, families(150, every_us=300_000), archive=tmp_path / "log")
    with Recording.open(tmp_path / "log", KEY) as recording:
        assert verify(recording).different == 0
    left = [event for _, _, event in said(tmp_path / "log", KV) if isinstance(event, WorkerLeft)]
    ended = [event for _, _, event in pool_events(tmp_path / "log") if isinstance(event, PoolLeft | PoolLost)]
    assert len(ended) == len(left) > 0
    assert not any(isinstance(event, PoolLost) for event in ended)


def test_the_pool_goes_on_with_the_next_worker_after_the_last_one(tmp_path: Path) -> None:
    """A life ends and another one begins in its place: it announces what lies there, and reads it."""
    lives = (WorkerLife(0, 0, 20_000_000, 32_000_000), WorkerLife(0, 33_000_000))
    arrivals = families(40, every_us=100_000)
    later = [each._replace(id=type(each.id)(f"again-{each.id}"), at_us=each.at_us + 60_000_000) for each in arrivals]
    options = dataclasses.replace(POOL, workers=1, stays=lives)
    found = simulate(options, [*arrivals, *later], archive=tmp_path / "log")
    events = pool_events(tmp_path / "log")
    joined = [(at_ms, event.fence) for at_ms, _, event in events if isinstance(event, PoolJoined)]
    assert joined == [(0, 1), (33_000, 2)]
    assert sum(isinstance(event, PoolLost) for _, _, event in events) == 1
    first = next(each for each in found.served if each.id == "again-request-10")
    assert first.cached_tokens >= 6 * BLOCK_SIZE
    with Recording.open(tmp_path / "log", KEY) as recording:
        assert verify(recording).different == 0


def test_equal_runs_are_equal() -> None:
    options = dataclasses.replace(POOL, pool_blocks=100, failures_per_hour=600, replicas=2)
    runs = [simulate(options, families(200, every_us=100_000)) for _ in range(2)]
    assert runs[0].digest == runs[1].digest
    assert runs[0].pool == runs[1].pool


def test_a_pool_and_fetches_go_together(tmp_path: Path) -> None:
    """Bursts share a long start. Where it left all hosts it is read from the pool, and other workers fetch it from the
    reader then. Each decision follows from the log."""
    engine = dataclasses.replace(
        ENGINE, capacity_blocks=350, host_blocks=450, host_us_per_block=5, block_bytes=10**6, fetch_mb_per_s=20_000
    )
    options = Options(workers=4, engine=dataclasses.replace(engine, context_max=20_000), pool_blocks=20_000)
    options = dataclasses.replace(options, pool_us_per_block=30)
    found = simulate(options, bursts(240), archive=tmp_path / "log")
    routed = [event for _, _, event in said(tmp_path / "log", ROUTING) if isinstance(event, RequestRouted)]
    fetched = {each.request for each in routed if isinstance(each.fetch, PrefixFetch) and each.fetch.source}
    assert found.pool is not None
    assert found.pool.loads > 100
    met = [each.cached_tokens >= each.predicted_tokens for each in found.served if each.id in fetched]
    assert len(met) > 10
    assert sum(met) > 0.9 * len(met)
    with Recording.open(tmp_path / "log", KEY) as recording:
        proved = verify(recording)
    assert (proved.verified, proved.different) == (len(routed), 0)


def bursts(count: int) -> list[Arrival]:
    """Eight prompts at a time with a common start of 100 blocks, of sixteen such starts in turn."""
    found = []
    for number in range(count):
        hashes = [10_000 * (number // 8 % 16) + depth for depth in range(1, 101)]
        hashes += [10**9 + 100 * number + depth for depth in range(10)]
        at_us = number // 8 * 700_000 + (200_000 + number % 8 * 3000 if number % 8 else 0)
        found.append(Arrival(RequestId(f"r{number}"), at_us, len(hashes) * BLOCK_SIZE + 3, hashes_to_bytes(hashes), 9))
    return sorted(found, key=lambda each: each.at_us)


def test_options_that_do_not_go_together() -> None:
    with pytest.raises(CallerError, match="goes through the host: give engine"):
        Options(pool_blocks=9, engine=ENGINE)
    with pytest.raises(CallerError, match="workers have one pool, or a disk each"):
        Options(pool_blocks=9, engine=dataclasses.replace(SMALL, disk_blocks=9))
    with pytest.raises(CallerError, match="disks and pools do not go together with them yet"):
        Options(pool_blocks=9, engine=SMALL, prefill_workers=1)
    with pytest.raises(CallerError, match="pool_blocks must be from 0 to"):
        Options(pool_blocks=-1, engine=SMALL)

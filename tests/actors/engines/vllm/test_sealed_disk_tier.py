"""The bounds of the disk tier, without an engine: how much is read and written at once, and for whom."""

from __future__ import annotations

import threading
import warnings
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.engines.vllm.vllm_args import (
    DISK_KEY_VARIABLE,
    DISK_PARAMETER,
    FETCH_KEY_VARIABLE,
    FETCH_PARAMETER,
    LOADS_SHARE_BESIDE,
)
from actors.kv_blocks.block_store import BlockStore
from actors.kv_blocks.pool_facts import FACTS_FILE, read_pool
from actors.kv_blocks.shared_block_store import SharedBlockStore
from actors.kv_blocks.write_grant import KeeperFence
from actors.kv_objects.object_store import FAILED, ObjectStoreFailed
from actors.kv_objects.pool_objects import BLOCKS
from actors.kv_objects.s3_objects import S3Objects
from actors.kv_objects.write_credit import write_local
from tests.actors.kv_blocks.test_pool_folder import shared_by
from tests.fixtures.eventually import eventually
from tests.fixtures.s3_server import S3Server

CHUNKS, ROW_BYTES, TOKENS = 8, 4096, 32
STEP = SimpleNamespace(new_req_ids=())
"""The end of a step in which no request is scheduled for the first time."""
PLAIN = {DISK_PARAMETER: True}


class Tier:
    """A tier over a host of eight chunks."""

    def __init__(self, folder: Path, dtype: str = "float32", **more: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # vLLM's own, with no remedy here
            from vllm.v1.kv_offload import base, config  # noqa: PLC0415
            from vllm.v1.kv_offload.tiering.base import TransferJob  # noqa: PLC0415

            from actors.engines.vllm import disk_tier  # noqa: PLC0415
        self.module, self.base = disk_tier, base
        self.transfer_job: Any = TransferJob
        parallel = config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, is_parallelism_agnostic=False)
        self.config = config.OffloadingConfig(
            groups=(config.OffloadingGroupConfig(TOKENS, ("layer",), 0),),
            worker_kv_bytes_per_block=ROW_BYTES,
            enable_kv_cache_events=True,
            extra_config={},
            engine_id="contrail-test",
            model=config.OffloadingModelConfig("tiny", dtype),
            cache=config.OffloadingCacheConfig(TOKENS, 1),
            parallel=parallel,
        )
        self.host = np.random.default_rng(1).integers(-128, 127, (CHUNKS, ROW_BYTES), dtype=np.int8)
        spec: Any = SimpleNamespace(config=self.config)
        folder.mkdir(exist_ok=True)
        options = {"folder": str(folder), "size": 1 << 20, "facts": "facts", "shared": str(shared_by(folder)), **more}
        self.tier: Any = disk_tier.SealedDiskTier(spec, memoryview(self.host), "disk", **options)  # type: ignore[arg-type]
        self.jobs = 0

    def request(self, name: str, keys: list[bytes], params: dict[str, Any] | None) -> Any:
        context = self.base.ReqContext(name, params)
        for number, key in enumerate(keys, 1):
            context.set_offload_key_position(self.base.OffloadKey(key), number * TOKENS)
        self.tier.on_new_request(context)
        return context

    def job(self, context: Any, keys: list[bytes], chunks: list[int], *, load: bool) -> Any:
        self.jobs += 1
        made = self.transfer_job(self.jobs, keys, np.array(chunks, np.int32), load, context)
        (self.tier.submit_load if load else self.tier.submit_store)(made)
        return made

    def hit(self, key: bytes, context: Any) -> bool:
        return bool(self.tier.lookup(key, context) is self.base.LookupResult.HIT)

    def finished(self) -> list[Any]:
        self.tier.drain_jobs()
        return list(self.tier.get_finished_jobs())


@pytest.fixture
async def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(DISK_KEY_VARIABLE, "6b" * 32)
    made = Tier(tmp_path / "decode-0")
    yield made
    made.tier.shutdown()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writes and reads wait for it."""
    event = threading.Event()
    put, load = BlockStore.put, BlockStore.load

    def slow_put(self: BlockStore, *given: Any) -> bool:
        event.wait(20)
        return put(self, *given)

    def slow_load(self: BlockStore, *given: Any) -> bool:
        event.wait(20)
        return load(self, *given)

    monkeypatch.setattr(BlockStore, "put", slow_put)
    monkeypatch.setattr(BlockStore, "load", slow_load)
    yield event
    event.set()


def names(count: int) -> list[bytes]:
    return [b"block %2d" % number for number in range(count)]


async def test_bytes_go_and_come_back(tier: Tier) -> None:
    keys = names(4)
    context = tier.request("a", keys, PLAIN.copy())
    before = tier.host[:4].copy()
    tier.job(context, keys, [0, 1, 2, 3], load=False)
    assert [(each.job_id, each.success) for each in tier.finished()] == [(1, True)]
    tier.host[:] = 0
    later = tier.request("b", keys, PLAIN.copy())
    assert all(tier.hit(key, later) for key in keys)
    tier.job(later, keys, [4, 5, 6, 7], load=True)
    assert [each.success for each in tier.finished()] == [True]
    assert np.array_equal(tier.host[4:], before)


async def test_a_refused_block_alone_is_a_miss(tier: Tier, tmp_path: Path) -> None:
    keys = names(3)
    tier.job(tier.request("a", keys, PLAIN.copy()), keys, [0, 1, 2], load=False)
    tier.finished()
    oldest, middle, newest = sorted((tmp_path / "decode-0").glob("*.kv"), key=lambda file: file.stat().st_mtime_ns)
    assert (oldest, newest) != (middle, middle)
    middle.write_bytes(b"")
    tier.job(tier.request("b", keys, PLAIN.copy()), keys, [4, 5, 6], load=True)
    (found,) = tier.finished()
    assert not found.success
    assert sorted(found.successful_keys) == [keys[0], keys[2]]
    assert not tier.hit(keys[1], tier.request("c", keys, PLAIN.copy()))


@pytest.mark.parametrize("params", [None, {}, {DISK_PARAMETER: False}, {DISK_PARAMETER: "yes"}])
async def test_without_the_mark_nothing_is_stored_or_read(tier: Tier, params: dict[str, Any] | None) -> None:
    """As of adapters and embeddings, also if a plain request stored a block of that name."""
    keys = names(2)
    other = tier.request("a", keys, params)
    tier.job(other, keys, [0, 1], load=False)
    tier.finished()
    assert tier.tier._counts["blocks"] == 0
    tier.job(tier.request("b", keys, PLAIN.copy()), keys, [0, 1], load=False)
    tier.finished()
    assert tier.tier._counts["blocks"] == 2
    assert not tier.hit(keys[0], other)
    assert params is None or "max_load_tokens" not in params


async def test_a_request_may_load_what_the_host_holds(tier: Tier) -> None:
    params = PLAIN.copy()
    tier.request("a", [], params)
    assert params["max_load_tokens"] == CHUNKS * TOKENS


async def test_a_block_is_loaded_once_for_a_request_and_half_of_the_host_in_all(tier: Tier) -> None:
    """Else a prompt longer than the host would load for ever."""
    keys = names(CHUNKS)
    context = tier.request("a", keys, PLAIN.copy())
    for key in keys:
        tier.job(context, [key], [0], load=False)
        tier.finished()
    later = tier.request("b", keys, PLAIN.copy())
    for step in range(3):
        found = [tier.hit(key, later) for key in keys]
        assert found == [not step] * (CHUNKS // 2) + [False] * (CHUNKS // 2)
        tier.tier.on_schedule_end(STEP)
    assert tier.tier._counts["loads_declined"] == 3 * CHUNKS // 2
    tier.tier.on_request_finished(later)
    assert tier.hit(keys[0], tier.request("c", keys, PLAIN.copy()))


async def test_of_a_request_that_fetches_its_own_blocks_alone_are_read(tier: Tier) -> None:
    """Those that its decision took to be the worker's. vLLM is told to hand over all of its blocks, so that what was
    fetched is stored; of other requests it hands over what they computed."""
    keys, found = names(4), []
    tier.job(tier.request("a", keys, PLAIN.copy()), keys, [0, 1, 2, 3], load=False)
    tier.finished()
    for own_blocks in (0, 2, 4):
        source = {"host": "h", "port": 1, "blocks": 4, "own_blocks": own_blocks}
        params: dict[str, Any] = {**PLAIN, FETCH_PARAMETER: source}
        later = tier.request(f"b{own_blocks}", keys, params)
        found.append(sum(tier.hit(key, later) for key in keys))
        tier.tier.on_request_finished(later)
        tier.tier.on_schedule_end(STEP)
    assert found == [0, 2, 4]
    policy = tier.base.OffloadPolicy
    unmarked = params | {DISK_PARAMETER: False}
    for given, told in ((PLAIN, "chunk_level"), (params, "request_level"), (unmarked, "chunk_level")):
        assert tier.tier.on_new_request(tier.base.ReqContext("c", given.copy())).policy is policy(told)


async def test_beside_fetches_less_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the host, which the keeper is told; the fetch tier has another one."""
    monkeypatch.setenv(DISK_KEY_VARIABLE, "6b" * 32)
    made = Tier(tmp_path / "kv", loads_share=LOADS_SHARE_BESIDE)
    keys = names(CHUNKS // 2)
    made.job(made.request("a", keys, PLAIN.copy()), keys, [0, 1, 2, 3], load=False)
    made.finished()
    later = made.request("b", keys, PLAIN.copy())
    assert sum(made.hit(key, later) for key in keys) == CHUNKS // 4
    facts = read_pool(shared_by(tmp_path / "kv") / FACTS_FILE)
    assert facts is not None
    assert facts.load_blocks == CHUNKS // 4
    made.tier.shutdown()


async def test_half_of_the_host_is_read_at_once(tier: Tier, held: threading.Event) -> None:
    """By requests in turns: one whose blocks do not fit waits until others are scheduled or over. Where a turn has
    come without room, as after a wait, room comes back when reads end."""
    keys, found = names(CHUNKS), tier.base.LookupResult
    held.set()
    for key in keys:
        tier.job(tier.request("a", keys, PLAIN.copy()), [key], [0], load=False)
        tier.finished()
    held.clear()
    first, second, third = (
        tier.request(*asked, PLAIN.copy()) for asked in (("b", keys[:3]), ("c", keys[3:5]), ("d", keys[5:]))
    )
    assert [tier.hit(key, first) for key in keys[:3]] == [True] * 3
    assert [tier.tier.lookup(key, second) for key in keys[3:5]] == [found.RETRY] * 2
    assert tier.tier.is_undecided(second)
    tier.job(first, keys[:3], [0, 1, 2], load=True)
    tier.tier.on_schedule_end(SimpleNamespace(new_req_ids=["b"]))
    assert [tier.tier.lookup(key, second) for key in keys[3:5]] == [found.HIT, found.MISS], "three are being read"
    assert [tier.tier.lookup(key, third) for key in keys[5:]] == [found.RETRY] * 3
    tier.job(second, keys[3:4], [3], load=True)
    tier.tier.on_request_finished(second)
    tier.tier.on_schedule_end(STEP)
    assert [tier.tier.lookup(key, third) for key in keys[5:]] == [found.MISS] * 3, "its turn came; four are being read"
    held.set()
    assert len(tier.finished()) == 2
    assert tier.hit(keys[5], third)


async def test_half_of_the_host_is_written_at_once(tier: Tier, held: threading.Event) -> None:
    """More is dropped and counted, the last blocks first; each job ends."""
    keys = names(CHUNKS)
    context = tier.request("a", keys, PLAIN.copy())
    tier.job(context, keys[:3], [0, 1, 2], load=False)
    tier.job(context, keys[3:], [3, 4, 5, 6, 7], load=False)
    assert tier.tier._counts["stores_dropped"] == 4
    held.set()
    assert len(tier.finished()) == 2
    later = tier.request("b", keys, PLAIN.copy())
    assert [tier.tier._store.find_prefix(()).holds(tier.module.block_name(b"k" * 32, key)) for key in keys] == [
        True
    ] * 4 + [False] * 4
    assert tier.hit(keys[3], later)


async def test_requests_to_be_marked_are_bounded(tier: Tier, held: threading.Event) -> None:
    keys = names(2)
    tier.job(tier.request("a", keys, PLAIN.copy()), keys, [0, 1], load=False)  # both threads wait
    for number in range(2 * tier.module.STAMPS_MAX):
        tier.tier.on_request_finished(tier.request(f"b{number}", keys, PLAIN.copy()))
    assert tier.tier._stamping == tier.module.STAMPS_MAX
    held.set()
    await eventually(lambda: tier.tier._stamping == 0, "all marks")


async def test_what_was_used_is_seen_in_the_files(tier: Tier, tmp_path: Path) -> None:
    """Of one prompt the last block is the oldest, also after a request that only read: so the order outlives a kill."""
    keys = names(3)
    tier.job(tier.request("a", keys, PLAIN.copy()), keys, [0, 1, 2], load=False)
    tier.finished()
    before = [file.stat().st_mtime_ns for file in files_of(tmp_path, tier, keys)]
    assert [before[0] - each for each in before] == [0, 1, 2]
    reader = tier.request("b", keys, PLAIN.copy())
    reader.get_state(tier.module.RequestBlocks).stamp += 1_000_000_000
    tier.tier.on_request_finished(reader)
    await eventually(lambda: tier.tier._stamping == 0, "the mark")
    after = [file.stat().st_mtime_ns for file in files_of(tmp_path, tier, keys)]
    assert after[0] > before[0]
    assert [after[0] - each for each in after] == [0, 1, 2]


def files_of(folder: Path, tier: Tier, keys: list[bytes]) -> list[Path]:
    return [folder / "decode-0" / f"{tier.module.block_name(b'k' * 32, key).hex()}.kv" for key in keys]


async def test_a_thread_that_fails_ends_its_job(
    tier: Tier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> bool:
        raise RuntimeError("a defect")

    monkeypatch.setattr(BlockStore, "load", broken)
    tier.job(tier.request("a", [b"x"], PLAIN.copy()), [b"x"], [0], load=True)
    (found,) = tier.finished()
    assert not found.success
    assert "a block of the disk tier failed" in caplog.text


async def test_the_layout_is_part_of_the_seal(tier: Tier) -> None:
    """Each of its numbers, but not which of the ranks says it."""
    from dataclasses import replace  # noqa: PLC0415

    facts, parallel = tier.module.layout_facts, tier.config.parallel
    changed = [
        replace(tier.config, worker_kv_bytes_per_block=1),
        replace(tier.config, groups=()),
        replace(tier.config, parallel=replace(parallel, tp_size=2)),
        replace(tier.config, kv_cache_layout="other"),
        replace(tier.config, cache=replace(tier.config.cache, tokens_per_hash=16)),
        replace(tier.config, model=replace(tier.config.model, dtype="float16")),
    ]
    said = {facts(each, ROW_BYTES) for each in (tier.config, *changed)} | {facts(tier.config, 1)}
    assert len(said) == len(changed) + 2
    same = replace(tier.config, parallel=replace(parallel, rank=1))
    assert facts(same, ROW_BYTES) == facts(tier.config, ROW_BYTES)


async def test_tiers_of_two_layouts_are_two_kinds(tier: Tier, tmp_path: Path) -> None:
    """Over one folder: the second one refuses the first one's file. The keeper is told each one's kind."""
    keys = names(1)
    tier.job(tier.request("a", keys, PLAIN.copy()), keys, [0], load=False)
    tier.finished()
    shared = shared_by(tmp_path / "decode-0")
    first = read_pool(shared / FACTS_FILE)
    other = Tier(tmp_path / "decode-0", "float16")
    second = read_pool(shared / FACTS_FILE)
    assert first is not None
    assert second is not None
    assert first.kind != second.kind
    assert (first.load_blocks, first.groups) == (second.load_blocks, second.groups) == (CHUNKS // 2, 1)
    other.job(other.request("b", keys, PLAIN.copy()), keys, [0], load=True)
    assert [each.success for each in other.finished()] == [False]
    assert other.tier._counts["refused_seal"] == 1
    other.tier.shutdown()


async def test_a_tier_that_is_made_knows_its_folder(tier: Tier, tmp_path: Path) -> None:
    """So no keeper, which comes after it, announces a block that the engine would not ask for."""
    keys = names(3)
    tier.job(tier.request("a", keys, PLAIN.copy()), keys, [0, 1, 2], load=False)
    tier.finished()
    later = Tier(tmp_path / "decode-0")
    asked = later.request("b", keys, PLAIN.copy())
    assert [later.hit(key, asked) for key in keys] == [True] * 3
    later.tier.shutdown()


async def test_a_request_waits_while_a_network_file_system_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler itself never asks it; blocks are stored and come back, up to the first that is missing."""
    monkeypatch.setenv(DISK_KEY_VARIABLE, "6b" * 32)
    made = Tier(tmp_path / "kv", writer="0" * 16, remote=True)
    KeeperFence(tmp_path / "kv", 1).grant(1 << 20, 1 << 16, ("0" * 16,))
    keys, found = names(4), made.base.LookupResult
    first = made.request("a", keys, PLAIN.copy())
    before = made.host[:2].copy()
    made.job(first, keys[:2], [0, 1], load=False)
    assert [each.success for each in made.finished()] == [True]
    asked, holds = threading.Event(), SharedBlockStore.holds
    scheduler = threading.get_ident()

    def late(self: SharedBlockStore, name: bytes) -> bool:
        assert threading.get_ident() != scheduler
        asked.wait(5)
        return holds(self, name)

    monkeypatch.setattr(SharedBlockStore, "holds", late)
    later = made.request("b", keys, PLAIN.copy())
    assert [made.tier.lookup(key, later) for key in keys] == [found.RETRY] * 4
    assert made.tier.is_undecided(later)
    made.tier.on_schedule_end(STEP)
    assert not made.tier.is_undecided(later)
    asked.set()
    await eventually(lambda: made.tier.lookup(keys[3], later) is found.MISS, "the answer is there")
    assert [made.hit(key, later) for key in keys] == [True, True, False, False]
    made.host[:] = 0
    made.job(later, keys[:2], [4, 5], load=True)
    assert [each.success for each in made.finished()] == [True]
    assert np.array_equal(made.host[4:6], before)
    made.tier.shutdown()


OWN, SHARED, REMOTE, S3 = "own", "shared", "remote", "s3"


class Place:
    """A tier whose blocks lie in a folder, one that is shared, one on a network file system, or a store of objects."""

    def __init__(self, kind: str, folder: Path, s3: S3Server) -> None:
        writer = "" if kind == OWN else "0" * 16
        place = s3.place() if kind == S3 else None
        self.objects = None if place is None else S3Objects(place, 10.0)
        options: dict[str, Any] = {
            "writer": writer,
            "remote": kind in {REMOTE, S3},
            "objects": place and place._asdict(),
        }
        self.made, self._folder = Tier(folder, **options), folder
        if kind == S3:
            write_local(shared_by(folder), 1 << 20)
        elif kind != OWN:
            KeeperFence(folder, 1).grant(1 << 20, 1 << 16, (writer,))

    @property
    def blocks(self) -> int:
        """Those that lie there."""
        if self.objects is not None:
            return len([*self.objects.list(BLOCKS)])
        return len(list(self._folder.glob("*.kv")))

    async def finds(self, key: bytes) -> bool:
        """True if a request finds the block."""
        later, found = self.made.request("later", [key], PLAIN.copy()), self.made.base.LookupResult
        answers = []

        def answered() -> bool:
            answers.append(self.made.tier.lookup(key, later))
            return answers[-1] is not found.RETRY

        await eventually(answered, "the answer is there")
        self.made.tier.on_request_finished(later)
        self.made.tier.on_schedule_end(STEP)
        return answers[-1] is found.HIT

    def store(self, keys: list[bytes]) -> None:
        self.made.job(self.made.request("a", keys, PLAIN.copy()), keys, [*range(len(keys))], load=False)
        self.made.finished()


@pytest.fixture(params=[OWN, SHARED, REMOTE, S3])
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: S3Server
) -> AsyncIterator[Place]:
    monkeypatch.setenv(DISK_KEY_VARIABLE, "6b" * 32)
    made = Place(request.param, tmp_path / "kv", s3)
    yield made
    made.made.tier.shutdown()


async def test_what_was_written_while_a_pull_was_unconfirmed_goes(place: Place) -> None:
    """Wherever it lies, and nothing of before. From then on no request finds it. Of what was confirmed nothing goes."""
    keys, tier = names(6), place.made.tier
    tier.note_pulls(open_pulls=False)
    place.store(keys[:1])
    tier.note_pulls(open_pulls=True)
    place.store(keys[1:2])
    tier.note_pulls(open_pulls=True)
    place.store(keys[2:3])
    assert place.blocks == 3
    tier.remove_suspects()
    assert [await place.finds(key) for key in keys] == [True] + [False] * 5
    await eventually(lambda: place.blocks == 1, "they are removed")
    await eventually(lambda: not tier._removing, "the tier knows")
    place.store(keys[3:4])
    tier.note_pulls(open_pulls=True)
    place.store(keys[4:5])
    tier.note_pulls(open_pulls=False)
    tier.note_pulls(open_pulls=True)
    tier.remove_suspects()
    tier.remove_suspects()
    assert [await place.finds(key) for key in keys] == [True, False, False, True, True, False]
    place.store(keys[1:2])
    assert place.blocks == 4


@pytest.mark.parametrize("place", [REMOTE, S3], indirect=True)
async def test_a_remote_store_is_asked_again_until_it_has_removed_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile they lie there, but no request finds them, and none is stored anew: that would go with them."""
    keys, tier, fails = names(3), place.made.tier, [True]
    store = type(tier._store._store)
    remove = store.remove

    def failing(self: Any, some: Sequence[bytes]) -> Sequence[bytes]:
        return some if fails else remove(self, some)

    monkeypatch.setattr(store, "remove", failing)
    tier.note_pulls(open_pulls=True)
    place.store(keys[:2])
    tier.remove_suspects()
    await eventually(lambda: not tier._removing, "it failed")
    fails.clear()
    place.store(keys)
    assert [await place.finds(key) for key in keys] == [False, False, True]
    assert (place.blocks, len(tier._forgotten)) == (3, 2), "it is not asked at once"
    assert tier._remove_at_ms > 0
    tier._remove_at_ms = 0
    tier.on_new_request(place.made.base.ReqContext("b", PLAIN.copy()))
    await eventually(lambda: not tier._removing and not tier._forgotten, "it is asked again")
    assert place.blocks == 1
    place.store(keys)
    assert place.blocks == 3


@pytest.mark.parametrize("place", [S3], indirect=True)
async def test_a_bucket_that_refuses_a_removal_is_asked_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for all blocks; it is counted, and the keeper is told that they do not count."""
    keys, tier, asked = names(3), place.made.tier, list[int]()
    delete = S3Objects.delete

    def failing(self: S3Objects, some: Iterable[str]) -> None:
        asked.append(len([*some]))
        raise ObjectStoreFailed(FAILED, "a fault")

    place.store(keys)
    store = tier._store._store
    monkeypatch.setattr(S3Objects, "delete", failing)
    blocks = [place.made.module.block_name(b"k" * 32, key) for key in keys]
    assert store.remove(blocks) == blocks
    assert (asked, tier._counts["stuck"], place.blocks) == ([3], 3, 3)
    monkeypatch.setattr(S3Objects, "delete", delete)
    assert [*store.remove(blocks)] == []
    assert place.blocks == 0


async def test_more_suspects_than_can_be_noted_are_not_written(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier.module, "SUSPECTS_MAX", 2)
    keys = names(4)
    tier.tier.note_pulls(open_pulls=True)
    tier.job(tier.request("a", keys, PLAIN.copy()), keys, [0, 1, 2, 3], load=False)
    tier.finished()
    assert (tier.tier._counts["blocks"], tier.tier._counts["stores_dropped"]) == (2, 2)
    tier.tier.note_pulls(open_pulls=False)
    tier.job(tier.request("b", keys, PLAIN.copy()), keys, [0, 1, 2, 3], load=False)
    tier.finished()
    assert tier.tier._counts["blocks"] == 4


async def test_a_fetch_waits_while_the_disk_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that lie on a network file system are not fetched before it has answered; what it lacks is fetched."""
    monkeypatch.setenv(DISK_KEY_VARIABLE, "6b" * 32)
    monkeypatch.setenv(FETCH_KEY_VARIABLE, "66" * 32)
    disk = Tier(tmp_path / "kv", writer="0" * 16, remote=True, loads_share=LOADS_SHARE_BESIDE)
    from actors.engines.vllm.fetch_tier import HostFetchTier  # noqa: PLC0415

    spec: Any = SimpleNamespace(config=disk.config)
    more = {"host": "127.0.0.1", "facts": "facts", "shared": str(tmp_path), "loads_share": LOADS_SHARE_BESIDE}
    fetch: Any = HostFetchTier(spec, memoryview(disk.host), "fetch", **more)  # type: ignore[arg-type]
    asked, keys = threading.Event(), names(4)
    found: Any = disk.base.LookupResult
    host: Any = SimpleNamespace(_policy={}, lookup=lambda *_: found.MISS, touch=lambda *_: None)
    fetch.serve(host, disk.tier)

    def late(*_: object) -> bool:
        asked.wait(5)
        return False

    monkeypatch.setattr(SharedBlockStore, "holds", late)
    source = {"host": "127.0.0.1", "port": 1, "blocks": 4, "own_blocks": 2}
    context = disk.request("a", keys, {**PLAIN, FETCH_PARAMETER: source})
    fetch.on_new_request(context)

    def look() -> list[Any]:
        """As vLLM's manager asks the tiers in turn."""
        answers = []
        for key in keys:
            first = disk.tier.lookup(key, context)
            answers.append((first, fetch.lookup(key, context)))
        disk.tier.on_schedule_end(STEP)
        fetch.on_schedule_end(STEP)
        return answers

    try:
        assert look() == [(found.RETRY, found.RETRY)] * 2 + [(found.MISS, found.RETRY)] * 2
        asked.set()
        lookup = context.get_state(disk.module.RequestBlocks).lookup
        await eventually(lambda: lookup.holds(b"") is not None, "the answer is there")
        assert look() == [(found.MISS, found.HIT)] * 2 + [(found.MISS, found.MISS)] * 2
    finally:
        asked.set()
        fetch.shutdown()
        disk.tier.shutdown()

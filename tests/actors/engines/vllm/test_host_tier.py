"""The host tier of a vLLM engine: what leaves the device is loaded from memory, and no other text comes of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio
import torch

from actors.engines.engine import CacheGap
from actors.engines.tiny_model import HEAD_DIM, KV_HEADS, LAYERS
from actors.engines.vllm.tier_loads import SHARED_ARGUMENT
from actors.engines.vllm.vllm_args import host_tier
from actors.engines.vllm.vllm_engine import VllmEngine
from actors.kv_cache.cache_mirror import DEVICE, LEVELS, CacheMirror
from core.errors import CallerError
from core.generation import GenerateRequest
from core.ids import new_id
from core.prompt import TOKEN_BYTES, Prompt, scope_bytes
from tests.contracts.engine import HASH_SEED, Answer, EngineContract, Started, answer_to, prompt, request
from tests.fixtures.engines import ADAPTERS, RecordedEngine, adapter_ids
from tests.fixtures.eventually import eventually

DEVICE_BLOCKS, HOST_BLOCKS = 128, 512
SIZE = 32
BLOCK_BYTES = SIZE * 2 * LAYERS * KV_HEADS * HEAD_DIM * 4
"""Of the tiny model in float32."""
CONTEXT = 3200
REPEATS = 20
LENGTH = 20 * SIZE + 5
"""Tokens of a prompt: three quarters of REPEATS such prompts do not fit onto the device."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tiered(tiny_checkpoint: Path, vllm_engine: RecordedEngine) -> AsyncIterator[RecordedEngine]:
    """An engine with a small device and a larger host, and the adapters of the shared engine."""
    arguments = {"max_model_len": CONTEXT, "num_gpu_blocks_override": DEVICE_BLOCKS + 1}
    adapters = vllm_engine._adapter_paths
    engine = RecordedEngine(
        "tiny", str(tiny_checkpoint), arguments, adapters=adapters, host_tier_bytes=HOST_BLOCKS * BLOCK_BYTES
    )
    await engine.start()
    yield engine
    await engine.stop()


class TestVllmEngineWithHostTier(EngineContract):
    @pytest.fixture
    async def started(self, tiered: RecordedEngine) -> AsyncIterator[Started]:
        yield Started(tiered, tiered.changes)


class Depth(NamedTuple):
    """Tokens of a prompt that a mirror says are cached."""

    device: int
    all: int


class Followed:
    """The mirror of an engine, in step with it when asked."""

    def __init__(self, engine: RecordedEngine) -> None:
        self.mirror = CacheMirror(SIZE, HASH_SEED)
        self._engine = engine
        self._applied = 0

    async def depth(self, asked: GenerateRequest) -> Depth:
        await self._engine.settle()
        for change in self._engine.changes[self._applied :]:
            self.mirror.apply(change)
        self._applied = len(self._engine.changes)
        whole = Prompt(asked.tokens, SIZE, HASH_SEED, scope_bytes(asked.adapter, asked.cache_salt))
        device, found = set(self.mirror.held("device")), set[int]()
        depths = []
        for tier in LEVELS:
            found |= set(self.mirror.held(tier))
            held = [depth for depth in range(1, whole.blocks_reusable + 1) if whole.key(depth) in found]
            assert held == list(range(1, len(held) + 1)), "closed under prefixes"
            depths.append(len(held) * SIZE)
        assert depths[DEVICE] == SIZE * sum(whole.key(depth + 1) in device for depth in range(whole.blocks_reusable))
        return Depth(depths[DEVICE], depths[-1])


async def cold_and_again(engine: RecordedEngine, asked: list[GenerateRequest]) -> list[tuple[Answer, Depth, Answer]]:
    """Each is answered, all the others push it off the device, and it is answered again."""
    followed = Followed(engine)
    cold = [await answer_to(engine, each) for each in asked]
    found = []
    for each, first in zip(asked, cold, strict=True):
        again = msgspec.structs.replace(each, id=new_id())
        depth = await followed.depth(again)
        found.append((first, depth, await answer_to(engine, again)))
    return found


async def test_text_from_the_host_is_that_of_cold(tiered: RecordedEngine) -> None:
    """Twenty prompts that left the device: none is computed again, and each has its text, as predicted."""
    for first, depth, again in await cold_and_again(tiered, [request(prompt(LENGTH), 16) for _ in range(REPEATS)]):
        assert first.cached_tokens == 0
        assert depth == Depth(0, 20 * SIZE)
        assert again == first._replace(cached_tokens=depth.all)


async def test_scopes_share_nothing(tiered: RecordedEngine) -> None:
    """One prompt under adapters and salts, and beside them plain: each is loaded as its own, and a new one not at
    all."""
    asked = prompt(LENGTH)
    scopes = [(adapter, salt) for adapter in (None, *adapter_ids(tiered)) for salt in (None, "one", "two")]
    sent = [
        msgspec.structs.replace(request(asked, 8, cache_salt=salt), adapter=adapter, id=new_id())
        for adapter, salt in scopes
    ]
    found = await cold_and_again(tiered, sent)
    for first, depth, again in found:
        assert (first.cached_tokens, depth) == (0, Depth(0, 20 * SIZE))
        assert again == first._replace(cached_tokens=depth.all)
    assert len({first.tokens for first, _, _ in found}) == 1 + len(ADAPTERS)
    new = request(asked, 8, cache_salt="three")
    assert (await answer_to(tiered, new)) == found[0][0]


async def test_both_tiers_full(tiered: RecordedEngine) -> None:
    """With both tiers full, prompts in parallel and evictions all the time, the mirror predicts real reuse."""
    fresh, followed, compared = random.Random(21), Followed(tiered), []
    trunks = [prompt(fresh.randrange(10, 80) * SIZE) for _ in range(30)]

    def cut() -> bytes:
        trunk = fresh.choice(trunks)
        whole = len(trunk) // TOKEN_BYTES
        return trunk[: TOKEN_BYTES * fresh.choice([whole, whole // SIZE // 2 * SIZE, fresh.randrange(1, whole)])]

    for _ in range(8):
        asked = [request(cut() + prompt(fresh.randrange(SIZE)), fresh.randrange(2, 48)) for _ in range(8)]
        answers = await asyncio.gather(*(answer_to(tiered, each) for each in asked))
        assert {answer.finish for answer in answers} == {"length"}
        for _ in range(3):
            again = request(cut(), 2)
            depth = await followed.depth(again)
            compared.append((depth, (await answer_to(tiered, again)).cached_tokens))
    assert [depth.all for depth, _ in compared] == [real for _, real in compared]
    assert sum(depth.device < depth.all for depth, _ in compared) > 3, "few were loaded"
    mirror = followed.mirror
    copies = sum(block.holds(LEVELS["host"]) for block in mirror._blocks.values())
    assert copies == HOST_BLOCKS, "the host is full, and no more is claimed"
    assert (mirror.strangers, mirror.blocks_unindexed) == (0, 0)
    assert sum(mirror.reported_by_tier.values()) == mirror.reported
    assert not any(isinstance(change, CacheGap) for change in tiered.changes)


async def test_many_at_once(tiered: RecordedEngine) -> None:
    """Sixteen prompts at once that lie in the host: all are answered with their texts."""
    asked = [request(prompt(LENGTH), 8) for _ in range(16)]
    cold = [await answer_to(tiered, each) for each in asked]
    again = [answer_to(tiered, msgspec.structs.replace(each, id=new_id())) for each in asked]
    for first, second in zip(cold, await asyncio.gather(*again), strict=True):
        assert second.tokens == first.tokens
        assert second.cached_tokens is not None


async def test_loads_are_counted_and_can_be_skipped(tiered: RecordedEngine) -> None:
    """The sums have each block that came from the host, in a time of its own. Without the host nothing comes, and the
    text is the same."""
    asked = [request(prompt(LENGTH), 8) for _ in range(REPEATS)]
    cold = [await answer_to(tiered, each) for each in asked]
    sums = tiered.info.tier_loads
    assert sums is not None
    before = sums()["host"]
    for each, first in zip(asked[:4], cold, strict=False):
        skipping = msgspec.structs.replace(each, id=new_id(), skip_tiers=("host",))
        assert await answer_to(tiered, skipping) == first
    assert sums()["host"] == before
    for each, first in zip(asked[4:6], cold[4:], strict=False):
        skipping = msgspec.structs.replace(each, id=new_id(), skip_tiers=("disk", "remote"))
        assert await answer_to(tiered, skipping) == first._replace(cached_tokens=20 * SIZE)
    await eventually(lambda: sums()["host"].blocks == before.blocks + 2 * 20, "statistics come with steps")
    assert 0 < sums()["host"].us - before.us < 1_000_000


def test_arguments(tmp_path: Path) -> None:
    """A tier as large as the machine is refused."""
    more = host_tier(1 << 30, 2 << 30, tmp_path)["kv_connector_extra_config"]
    assert (more["cpu_bytes_to_use"], more["spec_name"], more[SHARED_ARGUMENT]) == (
        1 << 30, "HostTierSpec", str(tmp_path)
    )  # fmt: skip
    assert (more["offload_prompt_only"], more["self_describing_kv_events"]) == (False, True)
    with pytest.raises(CallerError, match="2048 MiB, and the machine has 2048 MiB: make it smaller"):
        host_tier(2 << 30, 2 << 30, tmp_path)


async def test_a_second_connector_is_refused(tiny_checkpoint: Path) -> None:
    """The engine's own argument for it clashes, by name; nothing of the engine is left."""
    engine = VllmEngine("tiny", str(tiny_checkpoint), {"kv_transfer_config": {}}, host_tier_bytes=1 << 20)
    with pytest.raises(CallerError, match="kv_transfer_config is set by Contrail for an engine with a host tier"):
        await engine.start(lambda _: None)


def test_copies() -> None:
    """Blocks of two groups go to their chunks and back, byte for byte, and no other block changes."""
    from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, GPULoadStoreSpec  # noqa: PLC0415
    from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec  # noqa: PLC0415

    from actors.engines.vllm.host_tier import HostTierWorker  # noqa: PLC0415

    tensors = [torch.randint(-128, 127, (8, 16), dtype=torch.int8) for _ in range(3)]
    refs = [[CanonicalKVCacheRef(0, 16), CanonicalKVCacheRef(1, 16)], [CanonicalKVCacheRef(2, 16)]]
    host = [torch.empty((10, 16), dtype=torch.int8) for _ in tensors]
    worker = HostTierWorker(CanonicalKVCaches([CanonicalKVCacheTensor(each, 16) for each in tensors], refs), host)
    before = [each.clone() for each in tensors]

    def on_device(blocks: list[int]) -> GPULoadStoreSpec:
        return GPULoadStoreSpec(blocks, group_sizes=(2, 1), block_indices=(0, 0))

    assert worker.submit_store(1, on_device([5, 2, 7]), CPULoadStoreSpec([9, 0, 4]))
    for each in tensors:
        each.zero_()
    assert worker.submit_load(2, CPULoadStoreSpec([9, 0, 4]), on_device([1, 3, 6]))
    worker.wait({1, 2})
    for number, blocks in ((0, (5, 2)), (1, (5, 2))):
        assert torch.equal(tensors[number][[1, 3]], before[number][[*blocks]])
    assert torch.equal(tensors[2][6], before[2][7])
    assert [int(each.abs().sum(dim=1).count_nonzero()) for each in tensors] == [2, 2, 1]
    done = worker.get_finished()
    assert [(each.job_id, each.success, each.transfer_size) for each in done] == [(1, True, 80), (2, True, 80)]
    assert worker.get_finished() == []
    worker.shutdown()


def test_a_host_without_room_for_a_block_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with the size of a block, at the start."""
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec  # noqa: PLC0415

    from actors.engines.vllm.host_tier import HostTierSpec  # noqa: PLC0415

    def too_small(self: Any, _config: object) -> None:
        self.blocks_per_chunk, self.num_chunks, self.kv_bytes_per_chunk = 1, 0, 4096

    monkeypatch.setattr(CPUOffloadingSpec, "__init__", too_small)
    config: Any = SimpleNamespace()
    with pytest.raises(ValueError, match="the host tier holds no block: one takes 4096 bytes"):
        HostTierSpec(config)

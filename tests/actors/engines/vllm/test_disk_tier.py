"""The disk tier of a vLLM engine: what left device and host is read from files, and no other text ever comes of it."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load_file, save_file

from actors.engines.vllm import shared_memory
from actors.engines.vllm.vllm_args import DiskTier
from actors.kv_blocks.block_file import FAILURES_MAX, PAUSE_S
from actors.kv_blocks.pool_facts import FACTS_FILE, PoolFacts, write_pool
from actors.kv_blocks.pool_folder import ObjectPlace
from core.errors import CallerError, EngineDead
from core.generation import GenerateRequest, Sampling
from core.ids import new_id
from core.prompt import TOKEN_BYTES
from tests.actors.engines.vllm.test_host_tier import BLOCK_BYTES, SIZE, Depth, Followed
from tests.contracts.engine import Answer, answer_to, prompt, request
from tests.fixtures.engines import RecordedEngine, adapter_ids
from tests.fixtures.eventually import eventually

DEVICE_BLOCKS, HOST_BLOCKS = 128, 100
CONTEXT = 3600
DISK_BYTES = 4 << 30
BLOCKS = 10
LENGTH = BLOCKS * SIZE + 5
"""Tokens of a prompt."""
REPEATS = int(os.environ.get("CONTRAIL_DISK_TIER_PROMPTS", str(BLOCKS)))
"""Prompts of each kind: a damaged file at each of a prompt's blocks. By hand, 20: set the variable of that name."""
FILE_BYTES_MAX = 4096
"""Less than a block's, more than that of the tier's numbers."""


class UnsealedEngine(RecordedEngine):
    """Its tier refuses no file."""

    def _configure(self) -> Any:
        config = super()._configure()
        (tier,) = config.kv_transfer_config.kv_connector_extra_config["secondary_tiers"]
        tier |= {"type": "UnsealedDiskTier", "module_path": "tests.fixtures.unsealed_tier"}
        return config


def engine_over(
    model: Path,
    folder: Path,
    kind: type[RecordedEngine] = RecordedEngine,
    disk_bytes: int = DISK_BYTES,
    writer: str = "",
    local: Path | None = None,
    objects: ObjectPlace | None = None,
    **more: Any,
) -> RecordedEngine:
    arguments = {"max_model_len": CONTEXT, "num_gpu_blocks_override": DEVICE_BLOCKS + 1}
    tier = DiskTier(folder, disk_bytes, b"k" * 32, writer, local, objects)
    return kind("tiny", str(model), arguments, host_tier_bytes=HOST_BLOCKS * BLOCK_BYTES, disk_tier=tier, **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the module's engines, one after the other."""
    return tmp_path_factory.mktemp("kv") / "decode-0"


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the model, whose weights the module may change."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path_factory.mktemp("model") / "tiny"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tiered(model: Path, folder: Path, vllm_engine: RecordedEngine) -> AsyncIterator[RecordedEngine]:
    """An engine with a small device, a smaller host and a disk, and the adapters of the shared engine."""
    engine = engine_over(model, folder, adapters=vllm_engine._adapter_paths)
    await engine.start()
    yield engine
    await engine.stop()


def again(asked: GenerateRequest) -> GenerateRequest:
    return msgspec.structs.replace(asked, id=new_id())


async def stored(engine: RecordedEngine, asked: list[GenerateRequest], folder: Path) -> list[tuple[Answer, list[Path]]]:
    """The cold answer to each, and its blocks' files, from its first block on; all are off the device and the host."""
    await quiet(engine)  # files of earlier prompts would be counted as theirs
    before = set(folder.glob("*.kv"))
    found = []

    def new() -> list[Path]:
        files = set(folder.glob("*.kv")) - before
        return sorted(files, key=lambda file: -file.stat().st_mtime_ns)  # a prompt's last block is the oldest

    for each in asked:
        cold = await answer_to(engine, each)
        await eventually(lambda: len(new()) == BLOCKS, "all blocks on the disk")
        found.append((cold, files := new()))
        before.update(files)
    await push_out(engine)
    return found


async def push_out(engine: RecordedEngine) -> None:
    """Neither device nor host has anything of before."""
    for _ in range((DEVICE_BLOCKS + SIZE) // BLOCKS):
        await answer_to(engine, request(prompt(LENGTH), 2))


async def quiet(engine: RecordedEngine) -> Mapping[str, int]:
    """The numbers of the tier, once nothing is written."""
    before: Mapping[str, int] = {}
    while (counts := engine.disk_counts()) != before:
        before = counts
        await asyncio.sleep(0.5)
    return counts


async def test_text_from_the_disk_is_that_of_cold(tiered: RecordedEngine, folder: Path) -> None:
    """Prompts that left device and host: none is computed again; the index was promised nothing of them."""
    asked = [request(prompt(LENGTH), 16) for _ in range(REPEATS)]
    found = await stored(tiered, asked, folder)
    followed, loads = Followed(tiered), tiered.disk_counts()["loads"]
    for number, (each, (cold, _)) in enumerate(zip(asked, found, strict=True)):
        assert cold.cached_tokens == 0
        assert number % 4 or await followed.depth(each) == Depth(0, 0)
        assert await answer_to(tiered, again(each)) == cold._replace(cached_tokens=BLOCKS * SIZE)
        assert number % 4 or await followed.depth(each) == Depth(BLOCKS * SIZE, BLOCKS * SIZE)
    assert tiered.disk_counts()["loads"] == loads + REPEATS * BLOCKS


async def test_a_disk_that_is_to_be_skipped_is_not_read(tiered: RecordedEngine, folder: Path) -> None:
    """As by a request for which it is slower than computing: all is computed, and the text is the same. Loads are
    counted with their times."""
    asked = [request(prompt(LENGTH), 8) for _ in range(REPEATS)]
    cold = [cold for cold, _ in await stored(tiered, asked, folder)]
    sums = tiered.info.tier_loads
    assert sums is not None
    before, read = sums()["disk"], tiered.disk_counts()["loads"]
    for each, first in zip(asked[:4], cold, strict=False):
        skipping = msgspec.structs.replace(again(each), skip_tiers=("disk",))
        assert await answer_to(tiered, skipping) == first
    assert (sums()["disk"], tiered.disk_counts()["loads"]) == (before, read)
    for each, first in zip(asked[4:8], cold[4:], strict=False):
        other = msgspec.structs.replace(again(each), skip_tiers=("remote",))
        assert await answer_to(tiered, other) == first._replace(cached_tokens=BLOCKS * SIZE)
    assert sums()["disk"].blocks == before.blocks + 4 * BLOCKS
    assert 0 < sums()["disk"].us - before.us < 4_000_000
    assert sums()["host"].blocks >= 4 * BLOCKS


def flip(file: Path, _: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[random.Random(new_id()).randrange(64, len(raw))] ^= 1
    file.write_bytes(raw)


def truncate(file: Path, _: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def swap(file: Path, other: Path) -> None:
    shutil.copyfile(other, file)


@pytest.mark.parametrize(("reason", "damage"), [("short", truncate), ("checksum", flip), ("stranger", swap)])
async def test_a_damaged_file_is_computed_again(
    tiered: RecordedEngine, folder: Path, reason: str, damage: Callable[[Path, Path], None]
) -> None:
    """Prompts with a damaged file each: the blocks before it are taken, and the text is that of cold."""
    asked = [request(prompt(LENGTH), 8) for _ in range(REPEATS)]
    found = await stored(tiered, asked, folder)
    refused = tiered.disk_counts()[f"refused_{reason}"]
    for number, (each, (cold, files)) in enumerate(zip(asked, found, strict=True)):
        at = number % BLOCKS
        damage(files[at], found[number - 1][1][at])
        assert await answer_to(tiered, again(each)) == cold._replace(cached_tokens=at * SIZE)
    assert tiered.disk_counts()[f"refused_{reason}"] == refused + REPEATS


async def test_scopes_share_nothing(tiered: RecordedEngine, folder: Path) -> None:
    """Prompts, each plain, salted and with an adapter: plain and salted ones are read as their own, and blocks of
    an adapter never reach the disk."""
    plain = [request(prompt(LENGTH), 8) for _ in range(REPEATS // 2)]
    salted = [msgspec.structs.replace(again(each), cache_salt="one") for each in plain]
    adapted = [msgspec.structs.replace(again(each), adapter=adapter_ids(tiered)[0]) for each in plain]
    cold = [cold for cold, _ in await stored(tiered, [*plain, *salted], folder)]
    before = await quiet(tiered)
    with_adapter = [await answer_to(tiered, each) for each in adapted]
    assert {each.cached_tokens for each in (*cold, *with_adapter)} == {0}
    assert await quiet(tiered) == before
    await push_out(tiered)
    for each, first in zip(plain, cold, strict=False):
        new = msgspec.structs.replace(again(each), cache_salt="two")
        assert await answer_to(tiered, new) == first
    for each, first in zip([*plain, *salted], cold, strict=True):
        assert await answer_to(tiered, again(each)) == first._replace(cached_tokens=BLOCKS * SIZE)
    for each, first in zip(adapted, with_adapter, strict=True):
        assert await answer_to(tiered, again(each)) == first
        assert first.tokens != cold[0].tokens


async def test_many_at_once(tiered: RecordedEngine, folder: Path) -> None:
    """Sixteen prompts that lie on the disk, more than the host holds: all are answered with their texts. They are read
    in turns: on a busy machine some wait in vain, and are computed. Without turns four fifths are."""
    asked = [request(prompt(LENGTH), 8) for _ in range(16)]
    cold = [cold for cold, _ in await stored(tiered, asked, folder)]
    async with asyncio.timeout(120):
        found = await asyncio.gather(*(answer_to(tiered, again(each)) for each in asked))
    assert [each.tokens for each in found] == [each.tokens for each in cold]
    assert sum(each.cached_tokens or 0 for each in found) >= len(found) * BLOCKS * SIZE // 2


async def test_predicted_is_never_more(tiered: RecordedEngine) -> None:
    """With all tiers in use, prompts in parallel and evictions all the time."""
    fresh, followed, more = random.Random(21), Followed(tiered), 0
    trunks = [prompt(fresh.randrange(10, 80) * SIZE) for _ in range(20)]

    def cut() -> bytes:
        trunk = fresh.choice(trunks)
        return trunk[: TOKEN_BYTES * fresh.randrange(SIZE, len(trunk) // TOKEN_BYTES)]

    for _ in range(5):
        asked = [request(cut() + prompt(fresh.randrange(SIZE)), fresh.randrange(2, 48)) for _ in range(6)]
        await asyncio.gather(*(answer_to(tiered, each) for each in asked))
        for _ in range(3):
            each = request(cut(), 2)
            depth = await followed.depth(each)
            real = (await answer_to(tiered, each)).cached_tokens
            assert real is not None
            assert depth.all <= real
            more += depth.all < real
    assert more, "nothing came from the disk"
    assert followed.mirror.strangers == 0


async def test_a_disk_that_is_full(tiered: RecordedEngine, folder: Path) -> None:
    """The engine's process can write no file: prompts are answered, what is there is read, and after a few failures
    nothing is tried. It writes again PAUSE_S after it can."""
    asked = [request(prompt(LENGTH), 8) for _ in range(REPEATS)]
    cold = [cold for cold, _ in await stored(tiered, asked, folder)]
    before, pids = await quiet(tiered), tiered._processes.pids
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
    for pid, (_, hard) in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, hard))
    try:
        for each, first in zip(asked, cold, strict=True):
            new = request(prompt(LENGTH), 8)
            answer = await answer_to(tiered, new)
            assert (await answer_to(tiered, again(new))).tokens == answer.tokens
            assert await answer_to(tiered, again(each)) == first._replace(cached_tokens=BLOCKS * SIZE)
        counts = tiered.disk_counts()
        assert FAILURES_MAX <= counts["write_failures"] - before["write_failures"] < REPEATS * BLOCKS // 2
        assert counts["stores_dropped"] > before["stores_dropped"]
        assert counts["stores"] == before["stores"]
        assert not list(folder.glob("*.new"))
    finally:
        for pid, limit in limits.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
    async with asyncio.timeout(2 * PAUSE_S):
        while (await quiet(tiered))["stores"] == before["stores"]:
            await answer_to(tiered, request(prompt(LENGTH), 2))


def test_nothing_of_a_client_reaches_the_tier() -> None:
    """No request has parameters of block transfers, and the API refuses them by name (`test_errors`)."""
    fields = {*GenerateRequest.__struct_fields__, *Sampling.__struct_fields__}
    assert not [name for name in fields if "transfer" in name or name in {"extra_args", "vllm_xargs"}]


async def test_a_second_worker_of_that_name_is_refused(tiered: RecordedEngine, model: Path, folder: Path) -> None:
    with pytest.raises(CallerError, match="in use by another worker of that name"):
        await engine_over(model, folder).start()
    with pytest.raises(CallerError, match="a disk tier needs the model's own folder"):
        await engine_over(Path("org/model"), folder.with_name("other")).start()
    assert tiered.load().running == 0


async def test_lives_of_a_worker(tiered: RecordedEngine, model: Path, folder: Path, tmp_path: Path) -> None:
    """Engines over one folder, one after the other. The first, killed while it writes, leaves nothing but blocks. The
    next one's text is right, and it reads all blocks. With other weights at the same place, an engine reads none;
    without the seal's check it reads them, and the text is wrong."""
    asked = [request(prompt(LENGTH), 8) for _ in range(REPEATS)]
    longer = request(prompt((HOST_BLOCKS + 1) * SIZE + 5), 8)
    for part in (40, 80):  # in parts, as no more than half of the host is written at once
        await answer_to(tiered, request(longer.tokens[: TOKEN_BYTES * part * SIZE], 1))
        await quiet(tiered)
    longer_cold = await answer_to(tiered, longer)
    cold = [cold for cold, _ in await stored(tiered, asked, folder)]
    number = len(list(folder.glob("*.kv")))
    burst = [asyncio.ensure_future(answer_to(tiered, request(prompt(LENGTH), 4))) for _ in range(6)]
    await eventually(lambda: len(list(folder.glob("*.kv"))) > number, "a block")
    os.kill(tiered._processes.pids[0], signal.SIGKILL)
    await asyncio.gather(*burst, return_exceptions=True)
    with pytest.raises(EngineDead):
        await answer_to(tiered, request(prompt(LENGTH), 4))
    await tiered.stop()
    assert shared_memory.remove_leftovers() == 0

    engine = await life(tiered, model, folder)
    assert not list(folder.glob("*.new"))
    followed = Followed(engine)
    for each, first in zip(asked, cold, strict=True):
        assert await followed.depth(each) == Depth(0, 0)
        assert await answer_to(engine, again(each)) == first._replace(cached_tokens=BLOCKS * SIZE)
        assert await followed.depth(each) == Depth(BLOCKS * SIZE, BLOCKS * SIZE)
    for _ in range(3):  # longer than the host by a block: half of the host is loaded, and it is answered
        await push_out(engine)
        async with asyncio.timeout(60):
            found = await answer_to(engine, again(longer))
        assert found == longer_cold._replace(cached_tokens=HOST_BLOCKS // 2 * SIZE)
    assert followed.mirror.strangers == 0
    await engine.stop()

    kept = shutil.copytree(folder, tmp_path / "copy" / "decode-0")
    change_weights(model)
    engine = await life(tiered, model, folder)
    for each, first in zip(asked, cold, strict=True):
        found = await answer_to(engine, again(each))
        assert found == await answer_to(engine, msgspec.structs.replace(again(each), cache_salt=new_id()))
        assert found.cached_tokens == 0
        assert found.tokens != first.tokens
    assert engine.disk_counts()["refused_seal"] >= REPEATS
    assert engine.disk_counts()["loads"] == 0
    await engine.stop()

    engine = await life(tiered, model, kept, UnsealedEngine)
    wrong = 0
    for each in asked:
        found = await answer_to(engine, again(each))
        assert found.cached_tokens == BLOCKS * SIZE
        right = await answer_to(engine, msgspec.structs.replace(again(each), cache_salt=new_id()))
        wrong += found.tokens != right.tokens
    await engine.stop()
    assert wrong == REPEATS


async def life(
    before: RecordedEngine, model: Path, folder: Path, kind: type[RecordedEngine] = RecordedEngine
) -> RecordedEngine:
    """An engine with the adapters of the one before it, started."""
    engine = engine_over(model, folder, kind, adapters=before._adapter_paths)
    await engine.start()
    return engine


def change_weights(model: Path) -> None:
    """Other weights of the same names, sizes and times."""
    for file in model.glob("*.safetensors"):
        times = file.stat().st_atime_ns, file.stat().st_mtime_ns
        weights = load_file(file)
        fresh = np.random.default_rng(1)
        save_file({name: fresh.permuted(each) for name, each in weights.items()}, file, {"format": "pt"})
        os.utime(file, ns=times)


@pytest.mark.parametrize(("groups", "algorithm"), [(2, "sha256"), (1, "builtin")])
def test_a_pool_that_cannot_be_announced_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, groups: int, algorithm: str
) -> None:
    """That of a hybrid model, or of names that no file has. Workers that would share it are refused: it would have no
    keeper, and without one nothing is stored."""
    cause = "has 2 kinds of caches" if groups == 2 else "names them by builtin"
    for writer in ("", new_id()):
        engine = engine_over(tmp_path, tmp_path / "kv", writer=writer)
        engine._feed = SimpleNamespace(folder=str(tmp_path))
        write_pool(tmp_path / FACTS_FILE, PoolFacts("00" * 16, 4, groups))
        if writer:
            with pytest.raises(CallerError, match=f"cannot be announced, because the engine {cause}: give each"):
                engine._pool(algorithm)
        else:
            assert engine._pool(algorithm) is None
            assert f"the blocks of tiny on the disk cannot be announced, because the engine {cause}" in caplog.text

"""Cases of a pool: another worker reads the blocks, from a folder and from a store of S3; and what is predicted of all
tiers beside vLLM's own statistics."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from actors.engines.vllm.vllm_args import environment_with
from actors.kv_blocks.pool_folder import ObjectPlace
from actors.kv_objects.write_credit import read_local
from core.ids import new_id
from core.prompt import TOKEN_BYTES
from core.settings import RoutingSettings
from tests.actors.engines.vllm.test_disk_tier import BLOCKS, LENGTH, engine_over, push_out
from tests.actors.engines.vllm.test_host_tier import SIZE
from tests.actors.kv_pool.test_disk_pool import Served
from tests.actors.kv_pool.test_shared_disk import levels
from tests.actors.world import world
from tests.contracts.engine import prompt, request
from tests.fixtures.eventually import eventually
from tests.fixtures.s3_server import s3_server
from tests.tiers.case_result import CaseResult, counted
from tests.tiers.counted_engine import Bench, CountedEngine, Watch, cold_of, timed
from tests.tiers.host_cases import check

KNOWN_S = 60.0
"""Bound on the announcement of all blocks."""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests"}
TRUNKS, TRUNK_BLOCKS = 12, (10, 46)
"""Prompts, and the blocks of each: half of the host is loaded at once."""
PER_ROUND = 3
"""Predictions of each round."""


async def pool(bench: Bench) -> AsyncIterator[CaseResult]:
    """One folder for two workers."""
    yield await _by_another(bench, CaseResult("from the disk, written by another worker of the pool"))


async def s3(bench: Bench) -> AsyncIterator[CaseResult]:
    """One bucket for two workers; the server is moto."""
    with environment_with(CREDENTIALS), s3_server(bench.folder / "s3.log") as server:
        yield await _by_another(bench, CaseResult("from S3 (moto), written by another worker"), server.place())


async def _by_another(bench: Bench, case: CaseResult, objects: ObjectPlace | None = None) -> CaseResult:
    local = bench.folder if objects is not None else None
    async with world() as it:
        first = _engine(bench, local, objects)
        await it.worker("decode-0", engine=first)
        router = await it.router(settings=RoutingSettings(policy="kv"))
        await it.ready(router)
        if objects is not None:
            await eventually(lambda: read_local(first._shared) > 0, "it may write", KNOWN_S)
        asked = [request(prompt(LENGTH), 8) for _ in range(bench.rounds)]
        cold = [await timed(first, each) for each in asked]
        second = _engine(bench, local, objects)
        worker = await it.worker("decode-1", engine=second)
        await it.ready(router, workers=2)
        watch = Watch(case, second)
        for each, before in zip(asked, cold, strict=True):
            await eventually(lambda each=each: levels(router, worker, each)[-1] == BLOCKS, "it is known", KNOWN_S)  # type: ignore[misc]
            check(case, before, await timed(second, each), BLOCKS * SIZE)
        return await watch.end()


def _engine(bench: Bench, local: Path | None, objects: ObjectPlace | None) -> CountedEngine:
    engine = engine_over(bench.model, bench.folder / "kv", CountedEngine, writer=new_id(), local=local, objects=objects)
    assert isinstance(engine, CountedEngine)
    return engine


async def statistics(bench: Bench) -> AsyncIterator[CaseResult]:
    """One request at a time through a router, all tiers in use: predicted blocks by tier beside those that vLLM
    counted. A prediction is a lower bound."""
    case, folder = CaseResult("predicted beside vLLM's statistics, one at a time"), bench.folder / "kv" / "decode-0"
    fresh, said, by = random.Random(9), Counter[str](), Counter[str]()
    async with world() as it:
        engine = engine_over(bench.model, folder, CountedEngine)
        assert isinstance(engine, CountedEngine)
        await it.worker("decode-0", engine=engine)
        router = await it.router(settings=RoutingSettings(policy="kv"))
        await it.ready(router)
        served = Served(it, router, folder)
        trunks = [prompt(fresh.randrange(*TRUNK_BLOCKS) * SIZE) for _ in range(TRUNKS)]
        for trunk in trunks:
            await served.answer(request(trunk, 1))
        watch = Watch(case, engine)
        for number in range(PER_ROUND * bench.rounds):
            asked = request(_cut(fresh, trunks), 4)
            await served.told()
            device, host, disk, _ = served.levels(asked)
            before = engine.hits.copy()
            tokens, cached = await served.answer(asked)
            await engine.settle()
            found = sum(engine.blocks_since(before).values())
            said.update({"device": device, "host": host - device, "disk": disk - host})
            by.update({"equal": disk == found, "less": disk < found, "blocks beyond": max(0, found - disk)})
            case.expect(disk <= found, f"{disk} blocks were predicted and {found} found")
            case.expect(cached <= found * SIZE, f"{cached} tokens were counted as cached, by vLLM {found} blocks")
            if number % PER_ROUND == 0:
                cold = await cold_of(engine, asked)
                case.add(is_right=tuple(tokens) == cold.tokens)
            if number % 10 == 9:
                await push_out(engine)
        await watch.end()
    case.notes.append(f"predicted {counted(said)}; {counted(by)}")
    yield case


def _cut(fresh: random.Random, trunks: list[bytes]) -> bytes:
    """The start of one of them."""
    trunk = fresh.choice(trunks)
    return trunk[: TOKEN_BYTES * fresh.randrange(SIZE, len(trunk) // TOKEN_BYTES)]

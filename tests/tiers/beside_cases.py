"""Cases of tiers beside each other: a disk beside fetches behind a router, and pulls that are not confirmed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from actors.engines.vllm.vllm_args import DiskTier, FetchTier, environment_with
from actors.kv_blocks.pool_folder import ObjectPlace
from actors.kv_objects.write_credit import read_local
from core.events import RequestRouted
from core.events.routing import PrefixFetch
from core.ids import new_id
from core.prompt import TOKEN_BYTES
from core.settings import RoutingSettings
from replay.recording.recording import Recording
from replay.verify.verify import verify
from tests.actors.engines.vllm.test_disk_tier import quiet
from tests.actors.engines.vllm.test_fetch_tier import BLOCK_BYTES, KEY, SIZE
from tests.actors.engines.vllm.test_tiers_beside_pulls import (
    ARGUMENTS,
    AT_ONCE,
    CACHED,
    KEEP_MS,
    Asked,
    Engines,
    moving,
    new_prompts,
    pulled_too_late,
    pushed_out,
    with_tiers,
)
from tests.actors.engines.vllm.test_tiers_beside_pulls import quiet as settled
from tests.actors.kv_pool.test_shared_disk import levels
from tests.actors.world import KEY as WORLD_KEY
from tests.actors.world import NAMESPACE, world
from tests.contracts.engine import prompt, request
from tests.fixtures.engines import RecordedEngine
from tests.fixtures.eventually import eventually
from tests.fixtures.s3_server import s3_server
from tests.replay.recorded import archived
from tests.tiers.case_result import CaseResult, counted
from tests.tiers.counted_engine import Bench, CountedEngine, Watch, cold_of, timed
from tests.tiers.fetch_cases import TRIES_MAX, WARM, WARM_BLOCKS, Site
from tests.tiers.pool_cases import CREDENTIALS

DEVICE_BLOCKS, HOST_BLOCKS = 128, 160
START, OWN = 40, 16
"""Leading blocks of two prompts that one worker has, and those that the other one has on its disk."""
REST_TOKENS = 1880, 300
"""Of the two behind the start: the first one keeps the worker that has the start busy."""
KNOWN_S = 20.0
"""Bound on the announcement of all blocks, of which another pair of prompts is tried."""


class DiskSite(Site):
    """Two workers with disks of their own, or a bucket each, which fetch from each other, and a router."""

    def __init__(self, bench: Bench, it: Any, places: dict[str, ObjectPlace]) -> None:
        super().__init__(bench, it)
        self._places = places

    async def start(self, name: str) -> None:
        """The worker serves."""
        home = self._bench.folder / name
        home.mkdir()
        place = self._places.get(name)
        writer, local = ("", None) if place is None else (new_id(), home)
        await self.it.worker(name, engine=engine_with(self._bench, home, writer, local, place))

    def engine(self, name: str) -> Any:
        """That of the worker."""
        return self.it.workers[name].engine


def engine_with(
    bench: Bench, home: Path, writer: str, local: Path | None, objects: ObjectPlace | None
) -> CountedEngine:
    """An engine that fetches, with a disk in that folder, or a bucket."""
    arguments = {"max_model_len": 3200, "num_gpu_blocks_override": DEVICE_BLOCKS + 1}
    disk = DiskTier(home / "kv", 4 << 30, b"k" * 32, writer, local, objects)
    fetch = FetchTier("127.0.0.1", KEY, bench.folder)
    more: dict[str, Any] = {"host_tier_bytes": HOST_BLOCKS * BLOCK_BYTES, "disk_tier": disk, "fetch_tier": fetch}
    return CountedEngine("tiny", str(bench.model), arguments, **more)


async def fetch_disk(bench: Bench) -> AsyncIterator[CaseResult]:
    """Disks of two workers."""
    async for case in _beside(bench, "a start that is fetched, of which the own disk has a part", {}):
        yield case


async def fetch_s3(bench: Bench) -> AsyncIterator[CaseResult]:
    """Two buckets; the server is moto."""
    with environment_with(CREDENTIALS), s3_server(bench.folder / "s3.log") as server:
        places = {name: server.place(f"kv/{name}") for name in ("decode-0", "decode-1")}
        async for case in _beside(bench, "the same, of which S3 (moto) has a part", places):
            yield case


async def _beside(bench: Bench, name: str, places: dict[str, ObjectPlace]) -> AsyncIterator[CaseResult]:
    """Two prompts with one start are asked at once. One worker has the start; the other one has a part of it on its
    disk alone. It fetches all of it, for that is cheaper, and reads none. Then each decision is made again."""
    case, said = CaseResult(name), Counter[str]()
    async with world() as it:
        site = DiskSite(bench, it, places)
        for worker in ("decode-0", "decode-1"):
            await site.start(worker)
            if places:
                shared = site.engine(worker)._shared
                await eventually(lambda shared=shared: read_local(shared) > 0, "it may write", KNOWN_S)  # type: ignore[misc]
        site.router = await it.router(settings=RoutingSettings(policy="time", hold_max_ms=0))
        await it.ready(site.router, workers=2)
        for number in range(WARM):
            await site.answer(request(prompt(WARM_BLOCKS[number % 2] * SIZE), 2))
        for _ in range(bench.rounds):
            for _ in range(TRIES_MAX):
                if await _round(site, case, said):
                    break
            else:
                case.expect(condition=False, sentence=f"no fetch was decided on in {TRIES_MAX} pairs of prompts")
        case.notes.append(f"counted {counted(said)}")
        yield case
        yield await _verified(site, bench.folder / "log")


async def _round(site: DiskSite, case: CaseResult, said: Counter[str]) -> bool:
    """True if a fetch was decided on; `said` counts its blocks by source."""
    start = prompt(START * SIZE)
    source, other = "decode-0", "decode-1"
    await timed(site.engine(other), request(start[: OWN * SIZE * TOKEN_BYTES], 1))
    await quiet(site.engine(other))
    for _ in range(1 + HOST_BLOCKS // START):
        await timed(site.engine(other), request(prompt(START * SIZE), 1))
    await timed(site.engine(source), request(start, 1))
    whole = request(start + prompt(5), 1)

    def known() -> bool:
        has, lacks = (levels(site.router, site.it.workers[name], whole) for name in (source, other))
        return has[1] >= START and lacks[1:2] + lacks[-1:] == (0, OWN)

    try:
        await eventually(known, "both are known", KNOWN_S)
    except AssertionError:  # what a slow store does not take in at once is not offered to it again
        said["not stored"] += 1
        return False
    asked = [request(start + prompt(tokens), 8) for tokens in REST_TOKENS]
    before = site.engine(other).hits.copy()
    answers = await asyncio.gather(*(site.answer(each) for each in asked))
    await site.engine(other).settle()
    found = +site.engine(other).blocks_since(before)
    for name, each, answer in zip((source, other), asked, answers, strict=True):
        cold = await cold_of(site.engine(name), each)  # before, it would push the start off the source's host
        case.add(is_right=answer.tokens == cold.tokens, waited_ms=answer.first_ms)
    fetched = [(each, event) for each in asked for event in await site.routed(each) if _source(event)]
    if not fetched:
        return False
    ((each, event),) = fetched
    case.found.update(found)
    said.update(_check(case, event, answers[asked.index(each)].cached, found))
    return True


def _check(case: CaseResult, event: RequestRouted, cached: int, found: Counter[str]) -> Counter[str]:
    """The blocks that the decision counted, by source. The disk gave all of them, and the source no more than that: on
    a busy machine blocks come too late, and are computed."""
    assert isinstance(event.fetch, PrefixFetch)
    own, fetched = (event.predicted_cached_tokens - event.fetch.tokens) // SIZE, event.fetch.tokens // SIZE
    case.expect(found["disk"] == own, f"{found['disk']} blocks came from the disk, and {own} were counted")
    case.expect(found["p2p"] <= fetched, f"{found['p2p']} blocks were fetched, and {fetched} were counted")
    case.expect(cached == (own + found["p2p"]) * SIZE, f"{cached} tokens were cached, of {found}")
    return Counter({"disk": own, "p2p": fetched})


def _source(event: RequestRouted) -> str:
    return event.fetch.source if isinstance(event.fetch, PrefixFetch) else ""


async def _verified(site: DiskSite, file: Path) -> CaseResult:
    case = CaseResult("replay verify, the run with fetches beside a disk")
    await eventually(lambda: site.router.publisher.outbox.idle, "decisions are in the log")
    path = await archived(site.it.log, NAMESPACE, WORLD_KEY, file)
    with Recording.open(path, WORLD_KEY) as recording:
        found = verify(recording)
    case.rounds, case.right = found.decisions, found.decisions - found.different
    case.expect(found.holds, "it does not hold")
    case.notes.append(f"{found.verified} of {found.decisions} decisions made again, {found.different} differ")
    return case


async def pulls(bench: Bench) -> AsyncIterator[CaseResult]:
    """A decode engine with a host and a disk pulls blocks too late from a prefill engine. Without a confirmation they
    reach no tier; with one that is given all the same, they reach both."""
    folder = bench.folder / "kv"
    alone = RecordedEngine("tiny", str(bench.model), ARGUMENTS)
    prefill = RecordedEngine("tiny", str(bench.model), ARGUMENTS, moves_blocks="prefill", keep_ms=KEEP_MS)
    decode = with_tiers(bench.model, folder, "decode", CountedEngine)
    assert isinstance(decode, CountedEngine)
    it = Engines(alone, prefill, decode, folder)
    try:
        for engine in (alone, prefill, decode):
            await engine.start()
        late, case = await _late(bench, it)
        yield case
        believed, case = await _believed(bench, it)
        yield case
    finally:
        for engine in (decode, prefill, alone):
            await engine.stop()
    other = with_tiers(bench.model, folder, "", CountedEngine)
    assert isinstance(other, CountedEngine)
    await other.start()
    try:
        yield await _read(other, CaseResult("the same, from the disk by another worker"), late)
        name = "the same, the confirmation's check switched off, from the disk by another worker"
        yield await _read(other, CaseResult(name, is_wrong_expected=True), believed)
    finally:
        await other.stop()


async def _late(bench: Bench, it: Engines) -> tuple[list[Asked], CaseResult]:
    """Each prompt was pulled too late, forgotten, computed again, and pushed off the device."""
    case, asked = CaseResult("pulled too late and forgotten, from the host"), await new_prompts(it, bench.rounds)
    files, wrong = await settled(it), 0
    for first in range(0, bench.rounds, AT_ONCE):
        some = asked[first : first + AT_ONCE]
        await pulled_too_late(it, some)
        wrong += sum([(await timed(it.decode, each.again)).tokens != each.cold for each in some])
    case.notes.append(f"{wrong} of {len(asked)} texts were wrong before")
    case.expect(await settled(it) == files, "unconfirmed blocks are on the disk")
    await moving(it.decode).forget()
    for each in asked:
        found = await timed(it.decode, each.again)
        case.expect(not found.cached, f"{found.cached} tokens were not forgotten")
    await settled(it)
    await pushed_out(it.decode)
    return asked, await _read(it.decode, case, asked)


async def _believed(bench: Bench, it: Engines) -> tuple[list[Asked], CaseResult]:
    """Each prompt was pulled too late, and its pull confirmed as if its holder had said so."""
    case = CaseResult("pulled too late, the confirmation's check switched off, from the host", is_wrong_expected=True)
    asked = await new_prompts(it, bench.rounds)
    for first in range(0, bench.rounds, AT_ONCE):
        some = asked[first : first + AT_ONCE]
        for pull in await pulled_too_late(it, some):
            await moving(it.decode).confirm(pull)
        for each in some:
            await timed(it.decode, each.again)  # copies the blocks, which stand on the device
    await settled(it)
    await pushed_out(it.decode)
    case.notes.append("wrong texts are what must be seen")
    return asked, await _read(it.decode, case, asked)


async def _read(engine: Any, case: CaseResult, asked: list[Asked]) -> CaseResult:
    """All blocks of each prompt are found; its text is compared with that of an engine that pulls nothing."""
    watch = Watch(case, engine)
    for each in asked:
        found = await timed(engine, each.again)
        case.expect(found.cached == CACHED, f"{found.cached} tokens were found of {CACHED}")
        case.add(is_right=found.tokens == each.cold, waited_ms=found.first_ms)
    return await watch.end()

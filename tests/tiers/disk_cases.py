"""Cases of one worker's own disk: blocks that left device and host, damaged files, full disks, later processes."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from core.errors import EngineDead
from core.generation import GenerateRequest
from core.prompt import TOKEN_BYTES
from tests.actors.engines.vllm.test_disk_tier import (
    BLOCKS,
    FILE_BYTES_MAX,
    HOST_BLOCKS,
    LENGTH,
    UnsealedEngine,
    change_weights,
    engine_over,
    flip,
    push_out,
    quiet,
    stored,
    swap,
    truncate,
)
from tests.actors.engines.vllm.test_host_tier import SIZE
from tests.contracts.engine import Answer, prompt, request
from tests.fixtures.eventually import eventually
from tests.tiers.case_result import CaseResult
from tests.tiers.counted_engine import Bench, CountedEngine, TimedAnswer, Watch, cold_of, timed
from tests.tiers.host_cases import check, scopes

ANSWER_S = 60.0
"""Bound on one answer in cases that once never ended."""
AT_ONCE = 16
DAMAGES: tuple[tuple[str, str, Callable[[Path, Path], None]], ...] = (
    ("a truncated file", "short", truncate),
    ("a file with a flipped bit", "checksum", flip),
    ("a stranger's file", "stranger", swap),
)


class CountedUnsealedEngine(CountedEngine, UnsealedEngine):
    """Its tier refuses no file."""


async def disk(bench: Bench) -> AsyncIterator[CaseResult]:
    """A small device, a smaller host and a disk."""
    folder = bench.folder / "kv" / "decode-0"
    engine = _engine(bench, folder)
    await engine.start()
    try:
        yield await _from_disk(bench, engine, folder)
        for name, reason, damage in DAMAGES:
            yield await _damaged(bench, engine, folder, name, reason, damage)
        yield await scopes(
            bench, engine, "a salted tenant and an adapter beside a plain request, disk", BLOCKS, 0, _push_out
        )
        yield await _longer(bench, engine)
        yield await _at_once(bench, engine, folder)
        yield await _full(bench, engine, folder)
    finally:
        await engine.stop()


def _engine(bench: Bench, folder: Path, kind: type[CountedEngine] = CountedEngine) -> CountedEngine:
    engine = engine_over(bench.model, folder, kind, adapters=bench.adapters())
    assert isinstance(engine, CountedEngine)
    return engine


def _asked(bench: Bench, max_tokens: int = 8) -> list[GenerateRequest]:
    return [request(prompt(LENGTH), max_tokens) for _ in range(bench.rounds)]


async def _from_disk(bench: Bench, engine: CountedEngine, folder: Path) -> CaseResult:
    case, asked = CaseResult("left device and host, from the disk"), _asked(bench, 16)
    found = await stored(engine, asked, folder)
    watch = Watch(case, engine)
    for each, (cold, _) in zip(asked, found, strict=True):
        check(case, TimedAnswer(cold, 0.0), await timed(engine, each), BLOCKS * SIZE)
    return await watch.end()


async def _damaged(
    bench: Bench, engine: CountedEngine, folder: Path, name: str, reason: str, damage: Callable[[Path, Path], None]
) -> CaseResult:
    """Each prompt has one such file, each time another one: blocks before it are found."""
    case, asked = CaseResult(name), _asked(bench)
    found = await stored(engine, asked, folder)
    watch = Watch(case, engine)
    for number, (each, (cold, files)) in enumerate(zip(asked, found, strict=True)):
        at = number % BLOCKS
        damage(files[at], found[number - 1][1][at])
        check(case, TimedAnswer(cold, 0.0), await timed(engine, each), at * SIZE)
    await watch.end()
    case.expect(case.refused == {reason: bench.rounds}, f"refused were {dict(case.refused)}")
    return case


async def _push_out(engine: CountedEngine) -> None:
    """All is written, and neither device nor host has anything of before."""
    await quiet(engine)
    await push_out(engine)


async def _longer(bench: Bench, engine: CountedEngine) -> CaseResult:
    """A prompt on the disk with one block more than the host: half of the host is loaded, and it is answered."""
    case = CaseResult("a disk prefix one block longer than the host")
    asked = request(prompt((HOST_BLOCKS + 1) * SIZE + 5), 8)
    for part in (40, 80):  # in parts, as no more than half of the host is written at once
        await timed(engine, request(asked.tokens[: TOKEN_BYTES * part * SIZE], 1))
        await quiet(engine)
    cold = await timed(engine, asked)
    watch = Watch(case, engine)
    for _ in range(bench.rounds):
        await push_out(engine)
        async with asyncio.timeout(ANSWER_S):
            check(case, cold, await timed(engine, asked), HOST_BLOCKS // 2 * SIZE)
    return await watch.end()


async def _at_once(bench: Bench, engine: CountedEngine, folder: Path) -> CaseResult:
    """Sixteen requests whose prompts lie on the disk, over a host of a hundred chunks."""
    case = CaseResult(f"sixteen at once over a host of {HOST_BLOCKS} chunks")
    watch = Watch(case, engine)
    for _ in range(max(1, bench.rounds // 4)):
        asked = [request(prompt(LENGTH), 8) for _ in range(AT_ONCE)]
        found = await stored(engine, asked, folder)
        async with asyncio.timeout(ANSWER_S):
            answers = await asyncio.gather(*(timed(engine, each) for each in asked))
        for (cold, _), again in zip(found, answers, strict=True):
            case.add(is_right=again.tokens == cold.tokens, waited_ms=again.first_ms)
    return await watch.end()


async def _full(bench: Bench, engine: CountedEngine, folder: Path) -> CaseResult:
    """The engine's process can write no file: what lies there is found, and new prompts are answered."""
    case, asked = CaseResult("disk full"), _asked(bench)
    found = await stored(engine, asked, folder)
    before, watch = await quiet(engine), Watch(case, engine)
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in engine._processes.pids}
    for pid, (_, hard) in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, hard))
    try:
        for each, (cold, _) in zip(asked, found, strict=True):
            new = request(prompt(LENGTH), 8)
            first, second = await timed(engine, new), await timed(engine, new)
            case.expect(first.tokens == second.tokens, "a new prompt has two texts")
            check(case, TimedAnswer(cold, 0.0), await timed(engine, each), BLOCKS * SIZE)
        after = engine.disk_counts()
        case.expect(after["stores"] == before["stores"], "something was stored")
        case.expect(not list(folder.glob("*.new")), "a draft was left")
        case.notes.append(f"{after['write_failures'] - before['write_failures']} writes failed, then none was tried")
    finally:
        for pid, limit in limits.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
    return await watch.end()


async def lives(bench: Bench) -> AsyncIterator[CaseResult]:
    """Engines over one folder, one after the other; the first one is killed while it writes."""
    folder = bench.folder / "kv" / "decode-0"
    engine, asked = _engine(bench, folder), _asked(bench)
    await engine.start()
    try:
        cold = [cold for cold, _ in await stored(engine, asked, folder)]
        await _kill_while_it_writes(engine, folder)
    finally:
        await engine.stop()
    kept = Path(shutil.copytree(folder, bench.folder / "copy" / "decode-0"))

    case = CaseResult("the worker killed with -9, from the disk by a new process")
    engine = _engine(bench, folder)
    await engine.start()
    try:
        case.expect(not list(folder.glob("*.new")), "a draft was left")
        yield await _read_all(case, engine, asked, cold)
    finally:
        await engine.stop()

    change_weights(bench.model)
    engine = _engine(bench, folder)
    await engine.start()
    try:
        yield await _other_weights(engine, asked, cold)
    finally:
        await engine.stop()

    engine = _engine(bench, kept, CountedUnsealedEngine)
    await engine.start()
    try:
        case = CaseResult("other weights, the seal's check switched off", is_wrong_expected=True)
        watch = Watch(case, engine)
        for each in asked:
            check(case, await cold_of(engine, each), await timed(engine, each), BLOCKS * SIZE)
        case.notes.append("wrong texts are what must be seen")
        yield await watch.end()
    finally:
        await engine.stop()


async def _kill_while_it_writes(engine: CountedEngine, folder: Path) -> None:
    number = len(list(folder.glob("*.kv")))
    burst = [asyncio.ensure_future(timed(engine, request(prompt(LENGTH), 4))) for _ in range(6)]
    await eventually(lambda: len(list(folder.glob("*.kv"))) > number, "a block")
    os.kill(engine._processes.pids[0], signal.SIGKILL)
    ends = await asyncio.gather(*burst, return_exceptions=True)
    strange = [end for end in ends if isinstance(end, BaseException) and not isinstance(end, EngineDead)]
    if strange:
        raise strange[0]


async def _read_all(
    case: CaseResult, engine: CountedEngine, asked: list[GenerateRequest], cold: list[Answer]
) -> CaseResult:
    watch = Watch(case, engine)
    for each, first in zip(asked, cold, strict=True):
        check(case, TimedAnswer(first, 0.0), await timed(engine, each), BLOCKS * SIZE)
    return await watch.end()


async def _other_weights(engine: CountedEngine, asked: list[GenerateRequest], before: list[Answer]) -> CaseResult:
    """The weights' files have other content of the same size and time."""
    case = CaseResult("other weights in the same folder")
    watch = Watch(case, engine)
    for each, first in zip(asked, before, strict=True):
        found, cold = await timed(engine, each), await cold_of(engine, each)
        check(case, cold, found, 0)
        case.expect(found.tokens != first.tokens, "the other weights say the same")
    await watch.end()
    case.expect(case.refused["seal"] >= len(asked), f"refused were {dict(case.refused)}")
    return case

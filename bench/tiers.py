"""tiers: the time to the first token of a prompt that is nowhere, on the device, in the host's memory, and on the disk.

`python -m bench.tiers --json FILE`. Real vLLM engines on this machine's CPU with the built-in tiny model: one without
tiers, one with a host tier, and one with a disk behind a host for two prompts, which is started again in between; on a
device is room for one prompt. The first two answer the same prompts in turn, so that both have the same share of a
noisy machine; the third does so beside one without tiers. Files are in the system's cache. A text that is not that of
the cold answer, and a prompt of which less came from the cache than lies there, end the program.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from actors.engines.tiny_model import ensure_tiny_checkpoint
from actors.engines.vllm.vllm_args import DiskTier
from actors.engines.vllm.vllm_engine import VllmEngine
from bench.figures import Figure, main, refuse
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId, new_id
from core.prompt import tokens_to_bytes

PROMPTS, PROMPTS_QUICK = 20, 4
TOKENS = 3000
BLOCK_SIZE = 32
DEVICE_BLOCKS = 140
HOST_BYTES = 1 << 30
HOST_BYTES_BEFORE_DISK = 200 << 18
"""Room for 200 blocks of 256 KiB: two prompts."""
DISK_BYTES = 4 << 30
ARGUMENTS = {"num_gpu_blocks_override": DEVICE_BLOCKS + 1, "max_model_len": 4096, "block_size": BLOCK_SIZE}
WARM = 2
"""Prompts before the first that counts."""
MILLI = 1000


class Answer(NamedTuple):
    """One answer of an engine."""

    first_ms: float
    cached: int
    tokens: tuple[int, ...]


def measure(options: argparse.Namespace) -> Iterable[Figure]:
    """Medians over the prompts."""
    prompts = PROMPTS_QUICK if options.quick else PROMPTS
    with TemporaryDirectory() as folder:
        model = str(ensure_tiny_checkpoint(Path(folder, "tiny"), lambda *_: None))
        runs = [
            asyncio.run(_measured(model, prompts)),
            asyncio.run(_measured_on_disk(model, prompts, Path(folder, "kv", "bench"))),
        ]
    for found in runs:
        cold = next(iter(found.values()))
        for at, (name, each) in enumerate(found.items()):
            share = f"{each / cold:.0%} of cold" if at else ""
            yield Figure(f"first token of {TOKENS} tokens, {name}", each, "ms", note=share)


async def _measured(model: str, prompts: int) -> dict[str, float]:
    """Milliseconds by where the prompt lay; the first is that of cold."""
    plain = VllmEngine("tiny", model, ARGUMENTS)
    tiered = VllmEngine("tiny", model, ARGUMENTS, host_tier_bytes=HOST_BYTES)
    try:
        for engine in (plain, tiered):
            await engine.start(lambda _: None)
        for number in range(WARM):
            for engine in (plain, tiered):
                await _answer(engine, -1 - number)
        cold, beside, device = [], [], []
        for number in range(prompts):
            cold.append(await _answer(plain, number))
            beside.append(await _answer(tiered, number))
            device.append(await _answer(tiered, number))
        host = [await _answer(tiered, number) for number in range(prompts)]
    finally:
        await plain.stop()
        await tiered.stop()
    whole = (TOKENS - 1) // BLOCK_SIZE * BLOCK_SIZE
    for number, first in enumerate(cold):
        if not first.tokens == beside[number].tokens == device[number].tokens == host[number].tokens:
            refuse(f"prompt {number} has another text from a cache")
        if (first.cached, beside[number].cached, device[number].cached, host[number].cached) != (0, 0, whole, whole):
            refuse(f"prompt {number} was not in the cache where it should have been")
    each = {"cold": cold, "cold, and copied to the host": beside, "from the device": device, "from the host": host}
    return {name: median(answer.first_ms for answer in answers) for name, answers in each.items()}


async def _measured_on_disk(model: str, prompts: int, folder: Path) -> dict[str, float]:
    """The same for an engine with a disk, and for the one that comes after it."""
    plain = VllmEngine("tiny", model, ARGUMENTS)
    cold, beside, disk, later = list[Answer](), list[Answer](), list[Answer](), list[Answer]()
    try:
        await plain.start(lambda _: None)
        for read in (disk, later):
            tier = DiskTier(folder, DISK_BYTES, bytes(32))
            engine = VllmEngine("tiny", model, ARGUMENTS, host_tier_bytes=HOST_BYTES_BEFORE_DISK, disk_tier=tier)
            try:
                await engine.start(lambda _: None)
                for number in range(WARM):
                    for each in (plain, engine):
                        await _answer(each, -1 - number)
                if read is disk:
                    beside += [await _answer(engine, number) for number in range(prompts)]
                for number in range(prompts):
                    cold.append(await _answer(plain, number))
                    read.append(await _answer(engine, number))
            finally:
                await engine.stop()
    finally:
        await plain.stop()
    whole = (TOKENS - 1) // BLOCK_SIZE * BLOCK_SIZE
    for number in range(prompts):
        answers = (cold[number], beside[number], disk[number], later[number])
        if len({answer.tokens for answer in answers}) != 1:
            refuse(f"prompt {number} has another text from the disk")
        if [answer.cached for answer in answers] != [0, 0, whole, whole]:
            refuse(f"prompt {number} was not on the disk")
    found = {"cold beside the disk": cold, "cold, and copied to host and disk": beside, "from the disk": disk}
    found["from the disk, by a new process"] = later
    return {name: median(answer.first_ms for answer in answers) for name, answers in found.items()}


async def _answer(engine: VllmEngine, number: int) -> Answer:
    """The greedy answer to that prompt, once all before it is settled."""
    await engine.settle()
    ids = [(number * 7 + place * 13 + place // 50 * number) % 500 + 10 for place in range(TOKENS)]
    sampling = Sampling(max_tokens=8, temperature=0.0, ignore_eos=True)
    request = GenerateRequest(id=RequestId(new_id()), tokens=tokens_to_bytes(ids), sampling=sampling)
    began, first_ms, cached, tokens = time.perf_counter(), 0.0, 0, list[int]()
    async for output in engine.generate(request):
        if not tokens:
            first_ms, cached = (time.perf_counter() - began) * MILLI, output.cached_tokens or 0
        tokens += output.tokens
    return Answer(first_ms, cached, tuple(tokens))


if __name__ == "__main__":
    main("tiers", measure)

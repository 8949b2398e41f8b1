"""Arrivals for tests: families of prompts that begin alike, some of them longer than others."""

from __future__ import annotations

import xxhash

from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.ids import RequestId
from core.prompt import hashes_to_bytes
from replay.simulate.workload import Arrival

BLOCK_SIZE = 32
ENGINE = SimulatedSettings(block_size=BLOCK_SIZE, capacity_blocks=200, max_seqs=16, eos_every=0)


def families(count: int, every_us: int = 20_000, output_tokens: int = 12) -> list[Arrival]:
    """The same ones each time; more of them than a few hundred do not fit into the caches of a few workers."""
    return [_member(number, number * every_us, output_tokens + number % 7) for number in range(count)]


def _member(number: int, at_us: int, output_tokens: int) -> Arrival:
    family = [f"family {number % 9}/{place}" for place in range(6)]
    own = [f"request {number}/{place}" for place in range(number % 11)]
    hashes = hashes_to_bytes(xxhash.xxh3_64_intdigest(name.encode()) for name in (*family, *own))
    tokens = BLOCK_SIZE * (len(family) + len(own)) + number % BLOCK_SIZE
    return Arrival(RequestId(f"request-{number}"), at_us, tokens, hashes, output_tokens)

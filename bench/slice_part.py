"""A part of a public trace, once as arrivals for the simulation and once as requests for a live run."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from actors.engines.simulated.simulated_settings import SimulatedSettings, mocker_settings
from bench.streamed import completion
from core.errors import CallerError
from core.settings import RoutingSettings
from replay.simulate.options import Options
from replay.simulate.report import SimulationReport, report
from replay.simulate.simulation import simulate
from replay.simulate.trace_file import Vocabulary, block_hashes, read_mooncake, token_ids
from replay.simulate.workload import US_PER_MS, Arrival, Pace, Trace

MODEL = "sim"
US_PER_S = 1_000_000
LATE_MS = 5
"""Largest delay between sending and routing in a live run, for reading and parsing."""
ENGINE = dataclasses.replace(mocker_settings(), token_min=300, vocab=900)
"""Of both runs: Dynamo's mock engine, blocks of 64, 16 384 of them, and tokens that are plain words of the built-in
vocabulary: text that may be half a character is held back, and the first token would come later than it did."""


class Part(NamedTuple):
    """Requests in the order in which they come."""

    arrivals: list[Arrival]
    """From 0 us on."""
    bodies: Iterable[bytes]
    """The request bodies, as a client sends them; they may be made one by one."""

    @property
    def prompt_tokens(self) -> int:
        """Of all of them."""
        return sum(each.prompt_tokens for each in self.arrivals)

    @property
    def output_tokens(self) -> int:
        """That are to be made."""
        return sum(each.output_tokens for each in self.arrivals)


def part_of(file: Path, start_s: float, seconds: float, pace: Pace) -> Part:
    """The requests in these seconds of the trace, at that pace; some 4 bytes of memory per token of a prompt.

    CallerError if there is none, or if the file cannot be used.
    """
    start_us = round(start_s * US_PER_S)
    whole = read_mooncake(file)
    asked = [each for each in whole.asked if start_us <= each.at_us < start_us + seconds * US_PER_S]
    if not asked:
        raise CallerError(f"{file} has no request from {start_s:g} to {start_s + seconds:g} s: name another part")
    trace = Trace([each._replace(at_us=each.at_us - start_us) for each in asked], block_hashes)
    arrivals = list(trace.arrivals(pace, ENGINE.block_size))
    by_id, words = {each.id: each for each in asked}, Vocabulary(ENGINE.vocab, ENGINE.token_min)
    bodies = [completion(MODEL, token_ids(by_id[it.id], words).tolist(), it.output_tokens) for it in arrivals]
    return Part(arrivals, bodies)


def engine_args(engine: SimulatedSettings = ENGINE) -> dict[str, object]:
    """The engine as a deployment file has it."""
    usual = SimulatedSettings()
    fields = (field.name for field in dataclasses.fields(engine))
    return {name: getattr(engine, name) for name in fields if getattr(engine, name) != getattr(usual, name)}


def simulated(arrivals: list[Arrival], workers: int, routing: RoutingSettings, runs: int) -> Iterator[SimulationReport]:
    """So many simulations. They differ in what a live run cannot be told: the ids by which ties are broken, and how
    long after it was sent, up to LATE_MS, each request is with the router."""
    for seed in range(runs):
        options = Options(workers=workers, engine=ENGINE, routing=routing, seed=seed)
        done = simulate(options, late(arrivals, seed))
        yield report(done.served, workers, done.digest)


def late(arrivals: list[Arrival], seed: int) -> list[Arrival]:
    """Each one up to LATE_MS later than it was sent, in the order in which they are there then."""
    dice = random.Random(seed)
    moved = [each._replace(at_us=each.at_us + dice.randrange(LATE_MS * US_PER_MS)) for each in arrivals]
    return sorted(moved, key=lambda each: each.at_us)

"""The parts of `bench.slice`: the same requests for a live run and for the simulation, and how the two are compared."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from statistics import fmean

import pytest

from actors.engines.simulated.simulated_engine import SimulatedEngine
from bench.slice import WHATS, compared, markdown
from bench.slice_live import play, served
from bench.slice_part import ENGINE, LATE_MS, MODEL, engine_args, late, part_of, simulated
from bench.streamed import ask, completion
from core.errors import CallerError
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.prompt import tokens_to_bytes
from core.settings import RoutingSettings
from replay.simulate.report import report
from replay.simulate.workload import Pace
from tests.bench.speaking import speaking

LINES = [
    (0, [0, 1]),
    (3000, [0, 2, 3]),
    (6000, [0, 2, 3, 4]),
    (9000, [5, 2]),
    (12000, [0, 2, 3, 4, 6]),
]
"""When, and what of: parts of 512 tokens, the last one of 200."""
ROUND_ROBIN = RoutingSettings(policy="round-robin")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [
        {"timestamp": at, "input_length": 512 * (len(ids) - 1) + 200, "output_length": 3, "hash_ids": ids}
        for at, ids in LINES
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prompt(body: bytes) -> list[int]:
    found: list[int] = json.loads(body)["prompt"]
    return found


def test_a_part_begins_at_nothing_and_has_what_comes_in_its_time(trace: Path) -> None:
    part = part_of(trace, 3, 9, Pace())

    assert [each.at_us for each in part.arrivals] == [0, 3_000_000, 6_000_000]
    assert [len(prompt(body)) for body in part.bodies] == [each.prompt_tokens for each in part.arrivals]
    assert part.prompt_tokens == (2 * 512 + 200) + (3 * 512 + 200) + (512 + 200)
    assert part.output_tokens == 9


def test_jitter_puts_requests_into_the_order_in_which_they_then_come(trace: Path) -> None:
    part = part_of(trace, 0, 15, Pace(jitter_ms=60_000, seed=1))

    assert [each.at_us for each in part.arrivals] == sorted(each.at_us for each in part.arrivals)
    assert [len(prompt(body)) for body in part.bodies] == [each.prompt_tokens for each in part.arrivals]
    assert [each.id for each in part.arrivals] != [each.id for each in part_of(trace, 0, 15, Pace()).arrivals]


def test_a_part_without_a_request_is_refused(trace: Path) -> None:
    with pytest.raises(CallerError, match="no request from 100 to 105 s"):
        part_of(trace, 100, 5, Pace())


async def test_an_engine_finds_in_its_cache_what_the_simulation_says(trace: Path) -> None:
    part = part_of(trace, 0, 15, Pace())
    engine = SimulatedEngine(MODEL, dataclasses.replace(ENGINE, time_scale=1000.0))
    await engine.start(lambda _change: None)
    found = []
    try:
        for number, body in enumerate(part.bodies):
            asked = GenerateRequest(
                id=RequestId(f"{number}"), tokens=tokens_to_bytes(prompt(body)), sampling=Sampling(max_tokens=3)
            )
            outputs = [output async for output in engine.generate(asked)]
            found.append(next(output.cached_tokens for output in outputs if output.cached_tokens is not None))
    finally:
        await engine.stop()

    (simulation,) = simulated(part.arrivals, 1, ROUND_ROBIN, 1)

    assert found == [0, 512, 1216, 0, 1728]  # whole blocks of 64
    assert simulation.hit_rate == sum(found) / part.prompt_tokens


def test_the_file_of_the_live_run_says_the_engine_of_the_simulation() -> None:
    assert type(ENGINE).parse(engine_args()) == ENGINE


def test_every_simulation_gets_requests_a_little_late_in_its_own_way(trace: Path) -> None:
    arrivals = part_of(trace, 0, 15, Pace()).arrivals

    moved = [
        [each.at_us - before.at_us for before, each in zip(arrivals, late(arrivals, seed), strict=True)]
        for seed in (0, 1)
    ]

    assert moved[0] != moved[1]
    assert all(0 <= us < LATE_MS * 1000 for each in moved for us in each)
    assert late(arrivals, 0) == late(arrivals, 0)


async def test_requests_are_sent_in_their_order_and_reckoned_as_a_simulation(trace: Path) -> None:
    part = part_of(trace, 0, 15, Pace(speed_up=1000.0))

    async with speaking() as (there, port):
        start_s, answers = await play(port, part)
    found = report(served(part.arrivals, answers, start_s), 2)

    assert sorted(there.names) == sorted(each.id for each in part.arrivals)
    assert [body["max_tokens"] for body in there.asked] == [3] * 5
    assert found.requests == 5
    assert found.failed == 0
    assert sorted(found.load_spread.requests.per_worker) == [2, 3]
    assert found.hit_rate == sum(it.cached_tokens for it in answers) / part.prompt_tokens > 0
    assert 0 < found.ttft_ms.mean <= found.e2e_ms.mean
    assert [it.tokens for it in answers] == [(400, 401, 402)] * 5


async def test_a_refusal_and_an_answer_that_breaks_off_are_failures(trace: Path) -> None:
    arrivals = part_of(trace, 0, 15, Pace()).arrivals[:2]
    async with speaking() as (there, port):
        there.broken = True
        broken = await ask(port, completion(MODEL, [1, 2], 3), "broken")
        there.broken, there.status = False, 503
        refused = await ask(port, completion(MODEL, [1, 2], 3), "refused")
    gone = await ask(port, completion(MODEL, [1, 2], 3), "gone")

    found = report(served(arrivals, [broken, refused], broken.sent_s), 2)

    assert (broken.status, refused.status, gone.status) == (0, 503, 0)
    assert "broke off" in broken.failure
    assert not any(it.complete for it in (broken, refused, gone))
    assert found.failed == found.requests == 2


def test_a_live_run_agrees_or_is_as_far_away_as_simulations_are_or_differs(trace: Path) -> None:
    part = part_of(trace, 0, 15, Pace())
    whole = list(simulated(part.arrivals, 2, ROUND_ROBIN, 2))

    rows = {row.what.name: row for row in compared(whole[0], whole)}
    cached = rows["cached"]

    assert list(rows) == [what.name for what in WHATS]
    assert cached.verdict == "agrees"
    assert cached.mean == fmean(cached.runs) > 0
    assert cached._replace(live=cached.mean * 1.06).verdict == "DIFFERS"
    assert cached._replace(live=cached.mean * 1.06, runs=(cached.mean * 0.9, cached.mean * 1.1)).verdict == (
        "as runs differ"
    )
    assert rows["first token, p99"].verdict == ""
    assert markdown({"it": list(rows.values())}).count("\n") == 1 + len(WHATS)

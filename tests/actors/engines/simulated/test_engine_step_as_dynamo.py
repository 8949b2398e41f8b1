"""The simulated engine with Dynamo's timing, beside what Dynamo's own offline replay says of the same requests.

The figures are those of ai-dynamo 1.6.1: `run_trace_replay` with one worker, of 16 384 blocks of 64 unless another
number is given.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import pytest
import xxhash

from actors.engines.simulated.engine_state import Submit
from actors.engines.simulated.sequence import BlockHashPrompt
from actors.engines.simulated.simulated_settings import SimulatedSettings, mocker_settings
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId
from core.prompt import hashes_to_bytes
from tests.actors.engines.simulated.test_engine_step import Run

TRACE_BLOCK = 512
BLOCK = 64


class Row(NamedTuple):
    """A line of a trace in Mooncake's format."""

    at_ms: int
    tokens: int
    answer: int
    ids: list[int]


class Figures(NamedTuple):
    """Milliseconds; all but the last column by Dynamo's replay."""

    end: float
    first_mean: float
    first_min: float
    first_max: float
    whole_mean: float
    cached_tokens: int = 0
    thrown_out: int = 0


CASES: dict[str, tuple[dict[str, Any], list[Row], Figures]] = {
    "two at once": (
        {},
        [Row(0, 1000, 5, [1, 2]), Row(0, 500, 5, [3])],
        Figures(63.494, 40.224, 40.224, 40.224, 63.494),
    ),
    "one comes while another decodes": (
        {},
        [Row(0, 1000, 100, [1, 2]), Row(100, 500, 5, [3])],
        Figures(630.019, 31.852, 31.598, 32.106, 342.445),
    ),
    "a prompt in pieces, another with the last one": (
        {},
        [Row(0, 9000, 5, [*range(18)]), Row(0, 500, 5, [30])],
        Figures(231.128, 206.219, 206.219, 206.219, 231.128),
    ),
    "pieces beside one that decodes": (
        {},
        [Row(0, 500, 400, [99]), Row(100, 20000, 5, [*range(40)])],
        Figures(2748.097, 230.799, 24.198, 437.400, 1606.323),
    ),
    "the same prompt twice in a pass": (
        {},
        [Row(0, 1000, 5, [1, 2]), Row(0, 1000, 5, [1, 2])],
        Figures(56.120, 32.748, 32.748, 32.748, 56.120, 960),
    ),
    "a prompt that is cached whole": (
        {},
        [Row(0, 1024, 5, [1, 2]), Row(1000, 1024, 5, [1, 2])],
        Figures(1040.646, 24.983, 17.475, 32.491, 48.154, 960),
    ),
    "a prompt that is cached in part": (
        {},
        [Row(0, 1000, 5, [1, 2]), Row(1000, 1500, 5, [1, 3, 4])],
        Figures(1055.183, 32.010, 31.914, 32.106, 55.228, 512),
    ),
    "answers need more blocks than there are": (
        {"capacity_blocks": 40},
        [Row(10 * number, 500, 300, [number]) for number in range(4)],
        Figures(13032.873, 57.967, 24.198, 94.413, 10738.376, 0, 1),
    ),
    "eviction": (
        {"capacity_blocks": 40},
        [
            Row(0, 1000, 3, [1, 2]),
            Row(300, 1000, 3, [3, 4]),
            Row(600, 1000, 3, [1, 2]),
            Row(900, 1200, 3, [5, 6, 7]),
            Row(1200, 1000, 3, [1, 2]),
            Row(1500, 1000, 3, [3, 4]),
        ],
        Figures(1571.874, 26.629, 17.109, 35.328, 73.318, 2304),
    ),
    "two places": (
        {"max_seqs": 2},
        [Row(0, 400, 20, [number]) for number in range(6)],
        Figures(416.339, 167.697, 28.918, 306.477, 277.560),
    ),
    "small passes": (
        {"batched_tokens_max": 512},
        [Row(0, 700, 20, [number, 100 + number]) for number in range(4)],
        Figures(276.878, 108.060, 48.771, 165.331, 265.268),
    ),
}


def submit(number: int, row: Row) -> Submit:
    hashes = [
        xxhash.xxh3_64_intdigest(f"{row.ids[at // TRACE_BLOCK]}/{at % TRACE_BLOCK}".encode())
        for at in range(0, row.tokens - BLOCK + 1, BLOCK)
    ]
    asked = GenerateRequest(id=RequestId(f"{number}"), tokens=b"", sampling=Sampling(max_tokens=row.answer))
    return Submit(asked, known=BlockHashPrompt(row.tokens, hashes_to_bytes(hashes)))


def replayed(settings: SimulatedSettings, rows: list[Row]) -> Figures:
    """What the step function makes of it."""
    run = Run(settings)
    for number, row in enumerate(rows):
        run.now_us = 1000 * row.at_ms
        run.step(submit(number, row))
    run.to_end()
    first, end = dict[str, float](), dict[str, float]()
    for _, result in run.log:
        for (name, output), at_us in zip(result.outputs, result.times_us, strict=True):
            after_ms = at_us / 1000 - rows[int(name)].at_ms
            first.setdefault(name, after_ms)
            if output.finish:
                end[name] = after_ms
    firsts = list(first.values())
    return Figures(
        max(rows[int(name)].at_ms + after_ms for name, after_ms in end.items()),
        sum(firsts) / len(rows),
        min(firsts),
        max(firsts),
        sum(end.values()) / len(rows),
        sum(run.cached.values()),
        run.state.thrown_out,
    )


@pytest.mark.parametrize("case", CASES)
def test_as_dynamo_replays_it(case: str) -> None:
    """The same to some microseconds: ours are whole ones for each pass."""
    changed, rows, wanted = CASES[case]
    assert replayed(dataclasses.replace(mocker_settings(), **changed), rows) == pytest.approx(wanted, abs=0.006)

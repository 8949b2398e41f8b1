"""The parts of `bench.arena` on our side: ticks of Dynamo's simulator as periods, and orders as its targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.arena import ArenaDemand, ArenaPolicy, PeerFleet, _parsed
from bench.scaling import Fleet
from bench.scaling_rule import RateRule
from core.errors import CallerError
from core.events.scale import DemandCell
from projections.scaling.scale_settings import ScaleSettings
from replay.simulate.trace_file import TraceFile

PROMPTS = (4000, 8000, 4000)


def test_samples_are_requests(tmp_path: Path) -> None:
    """A request that ends alone has its own size, cached share and bounds; two at once are counted without sizes."""
    demand = ArenaDemand(_trace(tmp_path), ScaleSettings())
    arrived = [_sample(came=1, cached=0.5), _sample(came=1), _sample(came=1)]
    ended = [_sample(ended=1, prompt=8000, first_ms=1500.0), _sample(ended=1, prompt=4000)]

    first, second = demand.rolled(_tick(5, arrived)), demand.rolled(_tick(10, ended))
    third = demand.rolled(_tick(15, [_sample(ended=2, prompt=4000)]))

    assert (first.arrivals, first.ended, first.cells) == (3, 0, ())
    assert (second.arrivals, second.ended, second.attained) == (0, 2, 1)
    assert second.cells == (DemandCell(1, 2000, 100, 4000), DemandCell(1, 8000, 100, 8000))
    assert (third.ended, third.attained, third.cells) == (2, 2, ())
    assert (third.at_ms, third.waiting, third.running) == (15_000, 2, 7)


def test_orders_are_a_target(tmp_path: Path) -> None:
    """Twenty a second at two a worker are ten; one that became ready is no order any more."""
    settings = ScaleSettings()
    policy = ArenaPolicy(RateRule(2.0, settings), ArenaDemand(_trace(tmp_path, 150), settings))
    busy = [_sample(came=1)] * 100

    assert policy.target(_tick(5, busy, active=[0, 1, 2, 3])) == 10
    assert policy.target(_tick(10, busy[:50], active=[0, 1, 2, 3, 4], there=10)) == 10


def test_runs_are_fleets_or_modes_of_dynamos_planner() -> None:
    """Others are refused with those that there are."""
    assert _parsed("dynamo:both:kalman") == PeerFleet("both:kalman")
    assert _parsed("dynamo:both:kalman:60") == PeerFleet("both:kalman", 60)
    assert _parsed("static:4") == Fleet("static", 4.0)
    for wrong, there in (
        ("dynamo:best", "both:kalman"),
        ("dynamo:best:60", "both:kalman"),
        ("dynamo:load:constant:", "whole number"),
        ("dynamo:load:constant:0", "whole number"),
        ("dynamo:load:constant:1001", "whole number"),
        ("static:x", "planner:NUMBER"),
    ):
        with pytest.raises(CallerError, match=there):
            _parsed(wrong)


def _trace(folder: Path, repeated: int = 1) -> TraceFile:
    lines = [
        {
            "timestamp": 1000 * number,
            "input_length": tokens,
            "output_length": 100,
            "hash_ids": list(range(tokens // 500)),
        }
        for number, tokens in enumerate(PROMPTS * repeated)
    ]
    file = folder / "trace.jsonl"
    file.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return TraceFile(file)


def _sample(
    *, came: int = 0, cached: float = 0.0, ended: int = 0, prompt: int = 0, first_ms: float = 100.0
) -> dict[str, Any]:
    return {
        "arriving_requests": came,
        "avg_router_kv_hit_rate": cached,
        "completed_requests": ended,
        "avg_isl": float(prompt),
        "avg_osl": 100.0,
        "avg_ttft_ms": first_ms,
        "avg_itl_ms": 10.0,
    }


def _tick(
    at_s: int, samples: list[dict[str, Any]], active: list[int] | None = None, there: int | None = None
) -> dict[str, Any]:
    ready = [0] if active is None else active
    engine = {"num_queued_prefill": 2, "num_prefill_requests": 1, "num_decode_requests": 6}
    return {
        "now_ms": 1000.0 * at_s,
        "samples": samples,
        "decode_fpm_snapshots": [engine],
        "active_decode_ids": ready,
        "draining_decode_count": 0,
        "non_draining_decode_count": len(ready) if there is None else there,
    }

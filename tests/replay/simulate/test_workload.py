"""A trace at a pace: when its requests come, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import CallerError
from replay.simulate.trace_file import block_hashes, read_mooncake
from replay.simulate.workload import JITTER_MS_MAX, SPEED_UP_MAX, Pace, Trace
from tests.replay.simulate.talks import talks, written


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return read_mooncake(written(tmp_path / "trace.jsonl", talks()))


def times(trace: Trace, pace: Pace) -> dict[str, int]:
    """By id; they come in this order."""
    found = list(trace.arrivals(pace, 64))
    assert [each.at_us for each in found] == sorted(each.at_us for each in found)
    return {each.id: each.at_us for each in found}


def test_as_they_were(trace: Trace) -> None:
    """Each with all that the trace says of it."""
    for asked, arrival in zip(trace.asked, trace.arrivals(Pace(), 64), strict=True):
        assert arrival[:3] == (asked.id, asked.at_us, asked.prompt_tokens)
        assert arrival.hashes == block_hashes(asked, 64)
        assert arrival.output_tokens == asked.output_tokens


def test_faster(trace: Trace) -> None:
    """Rounded down to whole microseconds, in thousandths of the speed."""
    usual, fast, odd = times(trace, Pace()), times(trace, Pace(speed_up=4)), times(trace, Pace(speed_up=0.3333))

    assert fast == {id_: at_us // 4 for id_, at_us in usual.items()}
    assert odd == {id_: at_us * 1000 // 333 for id_, at_us in usual.items()}


def test_jitter_spreads(trace: Trace) -> None:
    """By less than it says, before they are sped up; all of it is used; the order changes with the times."""
    usual, jittered = times(trace, Pace()), times(trace, Pace(jitter_ms=3000, seed=1))
    later = [jittered[id_] - at_us for id_, at_us in usual.items()]

    assert min(later) >= 0
    assert max(later) < 3_000_000
    assert len(set(later)) == len(later)
    assert 1_000_000 < sum(later) / len(later) < 2_000_000
    assert list(usual) != list(jittered)
    fast = times(trace, Pace(speed_up=2, jitter_ms=3000, seed=1))
    assert fast == {id_: at_us // 2 for id_, at_us in jittered.items()}


def test_the_seed_decides(trace: Trace) -> None:
    """Equal ones give equal times; the first requests come when they would come among all."""
    one, other = times(trace, Pace(jitter_ms=500, seed=1)), times(trace, Pace(jitter_ms=500, seed=2))

    assert one == times(trace, Pace(jitter_ms=500, seed=1))
    assert one != other
    first = times(Trace(trace.asked[:7], trace.hashes), Pace(jitter_ms=500, seed=1))
    assert first.items() <= one.items()


def test_those_of_one_time_keep_their_order(trace: Trace) -> None:
    """As the trace has them."""
    at_once = Trace([each._replace(at_us=0) for each in trace.asked], trace.hashes)

    assert list(times(at_once, Pace())) == [each.id for each in trace.asked]


@pytest.mark.parametrize("speed_up", [0.0, 0.0009, -1.0, SPEED_UP_MAX + 1, float("nan"), float("inf")])
def test_no_speed(trace: Trace, speed_up: float) -> None:
    """It is refused before anything comes."""
    with pytest.raises(CallerError, match="speed-up"):
        times(trace, Pace(speed_up=speed_up))


@pytest.mark.parametrize("jitter_ms", [-1, JITTER_MS_MAX + 1])
def test_no_jitter(trace: Trace, jitter_ms: int) -> None:
    """The same."""
    with pytest.raises(CallerError, match="jitter"):
        times(trace, Pace(jitter_ms=jitter_ms))


def test_bounds_are_allowed(trace: Trace) -> None:
    """Both ends."""
    for pace in (Pace(speed_up=0.001), Pace(speed_up=SPEED_UP_MAX), Pace(jitter_ms=JITTER_MS_MAX)):
        assert len(times(trace, pace)) == len(trace.asked)

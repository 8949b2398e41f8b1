"""Setups by the names of their settings, and sweeps over them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.engines.simulated.simulated_settings import mocker_settings
from core.errors import CallerError
from core.settings import RoutingSettings
from replay.simulate.options import Options
from replay.simulate.report import SimulationReport
from replay.simulate.setup import POINTS_MAX, Setup, combinations, label, sweep
from replay.simulate.trace_file import TraceFile
from replay.simulate.workload import Pace
from tests.replay.simulate.talks import talks, written


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    trace = TraceFile(written(tmp_path / "trace.jsonl", talks(count=4, turns=4)))
    options = Options(workers=3, engine=mocker_settings(), routing=RoutingSettings(decode_weight_m=500))
    return Setup(trace, Pace(speed_up=20), options)


def quiet(_done: int, _of: int) -> None:
    pass


def untimed(report: SimulationReport) -> SimulationReport:
    return msgspec.structs.replace(report, wall_s=0.0)


def test_settings_go_by_name(setup: Setup) -> None:
    """Each to where it belongs; all others stay."""
    changed = setup.changed(
        {"workers": 2, "lag_ms": 5, "speed_up": 2, "seed": 9, "prefill_weight": 2, "engine.max_seqs": 7}
    )

    assert (changed.options.workers, changed.options.lag_ms, changed.options.replicas) == (2, 5, 1)
    assert (changed.options.seed, changed.pace) == (9, Pace(speed_up=2, seed=9))
    assert changed.options.routing == RoutingSettings(decode_weight_m=500, prefill_weight_m=2000)
    assert (changed.options.engine.max_seqs, changed.options.engine.capacity_blocks) == (7, 16_384)
    assert setup.changed({}) == setup


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"prefil_weight": 1}, "prefil_weight: no such setting; there are .*prefill_weight.* of routing, workers, "),
        ({"prefill_weight": "much"}, "routing.prefill_weight: 'much' is not a number"),
        ({"policy": "best"}, "routing.policy"),
        ({"workers": 2.5}, "workers: 2.5 is no whole number"),
        ({"workers": "two"}, "workers: 'two' is no whole number"),
        ({"workers": 0}, "workers must be from 1"),
        ({"speed_up": "fast"}, "speed_up: 'fast' is no number"),
        ({"speed_up": 0}, "speed-up: 0 is not between"),
        ({"engine.max_seqs": 0}, "max_seqs must be above 0"),
        ({"engine.wheels": 4}, "does not know wheels"),
        ({"engine.prefill_us_per_token": 9}, "engine.prefill_us_per_token: only the timing linear goes by it"),
        ({"engine.decode_us_per_step": 9}, "add --engine linear, or leave it out"),
        ({"engine.prefill_us_per_pass": 9}, "linear"),
        ({"engine.decode_us_per_context_token": 9, "engine.timing": "mocker"}, "linear"),
        ({"concurrency": 2}, "speed-up: with a concurrency requests come when others end, not at their times"),
    ],
)
def test_what_cannot_be_is_named(setup: Setup, given: dict[str, Any], why: str) -> None:
    """With what can be."""
    with pytest.raises(CallerError, match=why):
        setup.changed(given)


def test_a_setting_that_counts_may_be_set(setup: Setup) -> None:
    """Where another one of the same run has it count."""
    changed = setup.changed({"engine.timing": "linear", "engine.prefill_us_per_token": 9})

    assert changed.options.engine.prefill_us_per_token == 9
    assert setup.changed({"concurrency": 2, "speed_up": 1}).options.concurrency == 2


def test_lags_of_each_replica_are_not_swept_over(setup: Setup) -> None:
    """They count instead of the one that all have in common, whichever that would be."""
    lags = setup._replace(options=replace(setup.options, replicas=2, replica_lags_ms=(0, 5)))

    with pytest.raises(CallerError, match="lag_ms: each replica has a lag of its own here: leave either out"):
        lags.changed({"lag_ms": 0})


def test_every_combination() -> None:
    """The last name changes fastest; not too many."""
    assert combinations({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"},
    ]  # fmt: skip
    assert len(combinations({"a": range(POINTS_MAX)})) == POINTS_MAX
    with pytest.raises(CallerError, match=f"{POINTS_MAX + 1} runs are too many"):
        combinations({"a": range(POINTS_MAX + 1)})
    with pytest.raises(CallerError, match=f"{8**40} runs are too many"):  # and none of them is made to count them
        combinations({f"key {number}": range(8) for number in range(40)})


def test_labels_say_what_was_set() -> None:
    """As people write it."""
    assert label({"prefill_weight": 2.0, "policy": "kv", "workers": 4}) == "prefill_weight 2, policy kv, workers 4"


def test_processes_change_nothing(setup: Setup) -> None:
    """Two of them find what one does, in the same order; so does each run alone."""
    asked = combinations({"policy": ["round-robin"], "workers": [2, 1]})

    alone = list(sweep(setup, asked, 1))
    shared = list(sweep(setup, asked, 2))

    assert [each.given for each in shared] == asked
    assert [untimed(each.report) for each in shared] == [untimed(each.report) for each in alone]
    assert len({each.report.digest for each in alone}) == 2
    assert untimed(setup.changed(asked[-1]).run(quiet).report) == untimed(alone[-1].report)


def test_a_bad_point_is_told_before_the_first_run(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits an hour to learn it."""
    monkeypatch.setattr(Setup, "run", lambda *_: pytest.fail("it ran"))

    with pytest.raises(CallerError, match="workers"):
        sweep(setup, [{"workers": 2}, {"workers": 0}], 1)


def test_an_error_in_a_process_is_the_callers(setup: Setup) -> None:
    """As if there were no processes."""
    setup.trace.path.write_text("{}")

    with pytest.raises(CallerError, match="line 1"):
        list(sweep(setup, [{"workers": 1}, {"workers": 2}], 2))

"""The forecast process: answers, late ones, and processes that break."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec

import pytest

from actors.planning import forecast_process
from actors.planning.forecast_process import COMMAND, ForecastProcess
from projections.scaling.forecast import RateHistory
from projections.scaling.scale_settings import ARIMA, SEASONAL, ScaleSettings
from tests.fixtures.eventually import eventually
from tests.projections.scaling.demands import PERIOD_S, START_MS, rolled

SETTINGS = ScaleSettings(predictor=ARIMA)
MINUTES = 40
LAST = (START_MS + MINUTES * 60_000 - 1) // 60_000
"""Number of the last minute, which may go on."""
ECHO = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"rates_m": [len(asked["rates_m"])] * asked["steps"]}), flush=True)
"""
"""Answers with the number of minutes that it was given."""


def history(minutes: int = MINUTES) -> RateHistory:
    """Two a second."""
    found = RateHistory()
    for number in range(1, minutes * 60 // PERIOD_S + 1):
        found.add(rolled(number, 2 * PERIOD_S))
    return found


def program(text: str) -> tuple[str, ...]:
    return sys.executable, "-c", text


@pytest.fixture
async def started(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[ForecastProcess]]:
    """Those that a test makes; they are stopped behind it. Questions may follow each other at once."""
    monkeypatch.setattr(forecast_process, "ASK_EVERY_S", 0.0)
    found: list[ForecastProcess] = []
    yield found
    for each in found:
        await each.stop()
        assert each._process.pid is None


async def test_an_answer_is_foreseen_rates(started: list[ForecastProcess]) -> None:
    """Of the minutes behind the last whole one, beyond the horizon; decisions do not wait for it."""
    it = ForecastProcess(program(ECHO))
    started.append(it)
    it.ask(SETTINGS, history(), 65)
    assert it.foreseen is None

    await eventually(lambda: it.foreseen, "an answer")
    found = it.foreseen
    assert found is not None
    assert (found.predictor, found.first, found.rates_m) == (ARIMA, LAST, (MINUTES - 1,) * 6)
    assert (it.failures, it.fault) == (0, "")
    it.foreseen = None
    it.ask(SETTINGS, history(), 65)
    await eventually(lambda: it.foreseen, "an answer of the same process")


async def test_nothing_is_asked_without_need(started: list[ForecastProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the settings name no library, of one minute alone, and too early: no process is started."""
    it = ForecastProcess(program(ECHO))
    started.append(it)
    it.ask(ScaleSettings(predictor=SEASONAL), history(), 65)
    it.ask(SETTINGS, history(1), 65)
    assert it._query is None
    monkeypatch.setattr(forecast_process, "ASK_EVERY_S", 60.0)
    it.ask(SETTINGS, history(), 65)
    assert it._query is None, "the question of one minute counts as asked"


async def test_a_late_process_is_killed_and_counted(
    started: list[ForecastProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next question starts another one, and its answer takes the fault away."""
    monkeypatch.setattr(forecast_process, "FIRST_ANSWER_S", 0.3)
    it = ForecastProcess(program("import time; time.sleep(600)"))
    started.append(it)
    it.ask(SETTINGS, history(), 65)
    await eventually(lambda: it._process.pid, "a process")
    await eventually(lambda: it.failures, "the end of the wait")

    assert it.fault == "arima has not answered within 0.3 s"
    assert it._process.pid is None
    monkeypatch.setattr(forecast_process, "FIRST_ANSWER_S", 20.0)
    it._process.command = program(ECHO)
    it.ask(SETTINGS, history(), 65)
    await eventually(lambda: it.foreseen, "an answer")
    assert (it.failures, it.fault) == (1, "")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("raise SystemExit(1)", "the forecast process broke: "),
        ("input(); print('no JSON')", "the forecast process broke: "),
        ("input(); print('x' * 2_000_000)", "the forecast process broke: "),
        ('input(); print(\'{"error": "no luck"}\'); input()', "no luck"),
    ],
)
async def test_a_broken_process_is_a_fault(started: list[ForecastProcess], text: str, fault: str) -> None:
    """It is counted, and no rate is foreseen."""
    it = ForecastProcess(program(text))
    started.append(it)
    it.ask(SETTINGS, history(), 65)
    await eventually(lambda: it.failures, "a failure")

    assert it.fault.startswith(fault)
    assert it.foreseen is None


async def test_the_program_itself_answers(started: list[ForecastProcess]) -> None:
    """With rates where its library is installed, else with the command that installs it."""
    it = ForecastProcess(COMMAND)
    started.append(it)
    it.ask(SETTINGS, history(), 65)
    await eventually(lambda: it.foreseen or it.failures, "an answer", 60)

    if find_spec("statsmodels") is None:
        assert "`pip install 'contrail[forecast]'`" in it.fault
    else:
        assert it.foreseen is not None
        assert it.foreseen.rates_m == pytest.approx((2_000,) * 6, rel=0.05)

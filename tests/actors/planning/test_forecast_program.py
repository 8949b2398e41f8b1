"""The forecasters of other libraries, where these are installed, and the sentences where they cannot forecast."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from importlib.util import find_spec

import msgspec
import pytest

from actors.planning.forecast_process import COMMAND, ONE_THREAD
from actors.planning.forecast_program import MINUTES_MIN, MODULES, ForecastAnswer, ForecastQuestion, answer
from projections.scaling.scale_settings import ARIMA, DAY_S, PROPHET

FIRST = 29_000_000


def question(predictor: str, minutes: int, season_s: int = DAY_S) -> ForecastQuestion:
    """Rates of 4 a second that rise and fall by 2 within an hour, without noise."""
    rates_m = tuple(round(4000 + 2000 * math.sin(2 * math.pi * (FIRST + minute) / 60)) for minute in range(minutes))
    return ForecastQuestion(predictor=predictor, first=FIRST, rates_m=rates_m, steps=6, season_s=season_s)


STEADY = tuple(
    ForecastQuestion(predictor=each, first=FIRST, rates_m=(3_000,) * 60, steps=4, season_s=DAY_S)
    for each in (ARIMA, PROPHET)
)
WAVES = tuple(question(each, 240, season_s=3600) for each in (ARIMA, PROPHET))
"""Four seasons of an hour."""


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, int], ForecastAnswer]:
    """By predictor and minutes to come; all of one process, as the planner starts it."""
    asked = (*STEADY, *WAVES)
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in asked)
    done = subprocess.run(COMMAND, input=lines, capture_output=True, env=os.environ | ONE_THREAD, check=True)
    found = [msgspec.json.decode(line, type=ForecastAnswer) for line in done.stdout.splitlines()]
    return {(each.predictor, each.steps): it for each, it in zip(asked, found, strict=True)}


@pytest.mark.parametrize("predictor", [ARIMA, PROPHET])
def test_a_library_follows_steady_rates_and_waves(
    answers: dict[tuple[str, int], ForecastAnswer], predictor: str
) -> None:
    """Where nothing changes, nothing is foreseen to change; behind a crest the rate falls. A library that is not
    installed is named, with the command."""
    steady, wave = answers[predictor, 4], answers[predictor, 6]
    if find_spec(MODULES[predictor]) is None:
        assert steady.error.startswith(
            f"{MODULES[predictor]} is not installed here: `pip install 'contrail[forecast]'`"
        )
        return

    assert (steady.error, wave.error) == ("", "")
    assert steady.rates_m == pytest.approx((3_000,) * 4, rel=0.05)
    expected = [4000 + 2000 * math.sin(2 * math.pi * (FIRST + minute) / 60) for minute in range(240, 246)]
    assert expected[0] - 700 > expected[-1]
    assert wave.rates_m == pytest.approx(expected, rel=0.15)
    assert wave.rates_m[0] - 150 > wave.rates_m[-1]


@pytest.mark.parametrize("predictor", [ARIMA, PROPHET])
def test_a_library_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch, predictor: str) -> None:
    """With the command that installs it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == MODULES[predictor]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, MODULES[predictor], None)
    if predictor == PROPHET:
        monkeypatch.setitem(sys.modules, "pandas", None)

    found = answer(question(predictor, 60))

    assert found.rates_m == ()
    assert found.error.startswith(f"{MODULES[predictor]} is not installed here: `pip install 'contrail[forecast]'`")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (question(ARIMA, MINUTES_MIN - 1), "29 minutes are too few: 30 are the least"),
        (question("kalman", 60), "'kalman' forecasts no 6 minutes"),
    ],
)
def test_a_question_without_an_answer_is_one_sentence(asked: ForecastQuestion, sentence: str) -> None:
    """No library is asked."""
    assert answer(asked).error == sentence

"""Forecasts: the last minute, a filtered level, a trend, and the same hour on earlier days."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from core.events.scale import ScaleForecast
from projections.scaling.forecast import ERROR_MOST_BP, ERRORS_MIN, ForeseenRates, RateHistory, forecast
from projections.scaling.scale_settings import ARIMA, CONSTANT, KALMAN, PROPHET, SEASONAL, ScaleSettings
from tests.projections.scaling.demands import PERIOD_S, START_MS, rolled

PER_MINUTE = 60 // PERIOD_S


def history(arrivals: Iterable[int]) -> RateHistory:
    """Periods with these arrivals."""
    found = RateHistory()
    for number, count in enumerate(arrivals, 1):
        found.add(rolled(number, count))
    return found


def foreseen(found: RateHistory, periods: int, **given: object) -> ScaleForecast:
    settings = ScaleSettings(**given)  # type: ignore[arg-type]
    return forecast(found, settings, START_MS + periods * PERIOD_S * 1000, 60)


def test_the_last_value_is_that_of_a_minute() -> None:
    """Ten a period, and then twenty for half a minute."""
    arrivals = [10] * PER_MINUTE * 3 + [20] * (PER_MINUTE // 2)

    assert foreseen(history(arrivals), len(arrivals), predictor=CONSTANT).rate_m == 3_000


def test_a_level_follows_a_step_at_once_and_noise_slowly() -> None:
    """A step of three is the level after three periods; one high period hardly moves it."""
    quiet = [20] * PER_MINUTE * 10

    assert history(quiet).level_m == 4_000
    assert history([*quiet, 60, 60, 60]).level_m == 12_000
    assert 4_000 < history([*quiet, 26]).level_m < 4_400


@pytest.mark.parametrize("period_s", [16, 60])
def test_a_period_that_is_longer_than_a_step_has_a_level(period_s: int) -> None:
    """A planner's first period behind another's end is as long as none led; `period_s` goes up to a minute."""
    found = RateHistory()
    for number in range(1, 11):
        whole = rolled(number, 4 * period_s)
        found.add(replace(whole, at_ms=START_MS + number * period_s * 1000, period_s=period_s))
        assert found.level_m == 4_000


def test_a_trend_goes_on() -> None:
    """Arrivals that rise by the minute are foreseen to rise further."""
    arrivals = [20 + minute * 2 for minute in range(30) for _ in range(PER_MINUTE)]
    found = history(arrivals)

    assert foreseen(found, len(arrivals), predictor=KALMAN).rate_m > found.last_m


def test_the_same_hour_of_an_earlier_season_counts_if_it_is_higher() -> None:
    """Seasons of an hour: a 24th of it around the same moment has a minute of 2 a second, and three of 10."""
    season = [10] * PER_MINUTE * 30 + [50] * PER_MINUTE * 15 + [10] * PER_MINUTE * 15
    arrivals = [*season, *season[: PER_MINUTE * 30]]
    found = history(arrivals)

    assert foreseen(found, len(arrivals), predictor=SEASONAL, season_s=3_600).rate_m == 8_000
    assert foreseen(found, len(arrivals), predictor=SEASONAL).rate_m == 2_000


def test_recent_errors_raise_a_forecast_by_their_quantile() -> None:
    """Every second minute has a fifth more than was foreseen. With few errors, or with larger ones, a forecast lies as
    far above its rate as any may."""
    found = RateHistory()
    for number in range(1, PER_MINUTE * 2 * ERRORS_MIN + 1):
        minute = number // PER_MINUTE
        found.add(rolled(number, 12 if minute % 2 else 10))
        made = ScaleForecast(predictor=CONSTANT, rate_m=2_000, upper_m=2_000, quantile=50, horizon_s=60)
        found.note(START_MS + number * PERIOD_S * 1000, made)
    periods = PER_MINUTE * 2 * ERRORS_MIN

    plain, raised = (foreseen(found, periods, predictor=CONSTANT, quantile=quantile) for quantile in (50, 95))
    assert plain.upper_m == plain.rate_m
    assert 1.15 * raised.rate_m < raised.upper_m < 1.2 * raised.rate_m  # a minute has some of its neighbour's arrivals
    for errors in ([30_000] * ERRORS_MIN, [10_000] * (ERRORS_MIN - 1)):
        found.errors_bp.clear()
        found.errors_bp.extend(errors)
        most = foreseen(found, periods, predictor=CONSTANT, quantile=95)
        assert most.upper_m == most.rate_m * ERROR_MOST_BP // 10_000


def test_a_library_foresees_whole_minutes() -> None:
    """Its answer counts for the minute of the horizon; where it does not reach it, the seasonal forecast is named."""
    found = history([10] * PER_MINUTE * 3)
    at_ms = START_MS + 180_000
    number = (at_ms + 60_000) // 60_000
    answer = ForeseenRates(ARIMA, number - 1, (1_000, 2_500, 3_000))
    settings = ScaleSettings(predictor=ARIMA, quantile=50)

    assert forecast(found, settings, at_ms, 60, answer) == ScaleForecast(
        predictor=ARIMA, rate_m=2_500, upper_m=2_500, quantile=50, horizon_s=60
    )
    for other in (None, answer._replace(predictor=PROPHET), answer._replace(first=number + 1)):
        stood_in = forecast(found, settings, at_ms, 60, other)
        assert stood_in == forecast(found, ScaleSettings(predictor=SEASONAL, quantile=50), at_ms, 60)
    assert forecast(found, ScaleSettings(predictor=KALMAN), at_ms, 60, answer).predictor == KALMAN

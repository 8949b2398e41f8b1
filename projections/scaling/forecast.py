"""Forecasts of arrivals: constant, Kalman and seasonal, over the rates of past minutes. Those of other libraries come
from their own process, as rates of minutes to come.

A forecast's output stands in the decision that uses it. So it may use floating point: no replay computes it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import sqrt
from typing import NamedTuple

from core.events.scale import DemandRolled, ScaleForecast
from projections.scaling.scale_settings import (
    CONSTANT,
    DAY_S,
    KALMAN,
    LIBRARY_PREDICTORS,
    LIMITS,
    SEASONAL,
    ScaleSettings,
)

MINUTE_MS = 60_000
MILLI = 1000
DAYS_KEPT = 8
MINUTES_KEPT = DAYS_KEPT * DAY_S // 60
LAST_S = 60
"""The last value is the rate over so many seconds."""
LEVEL_S = 600
"""The level is filtered from the periods of the last so many seconds."""
LEVEL_NOISE = 0.002
"""Variance that a minute adds to the level, relative to the level's square: rates of real days change by a tenth within
ten minutes, and those of their busiest hours faster. Counts have a noise of their own, which is the larger one below
ten requests a second. The filter weighs one against the other."""
SEASON_WIDTH_S = 3600
"""Width of the same hour on an earlier day; a shorter season has a shorter one, in proportion."""
ERRORS_KEPT = 60
"""Recent errors of a forecaster, one for each minute at most."""
ERRORS_MIN = 10
"""With fewer errors a forecast with a quantile lies as far above its rate as any may."""
ERROR_MOST_BP = 12_500
"""No forecast lies further above its rate. A step is an error of once, however high it is; the hour behind it must not
be paid for."""
KALMAN_MINUTES = 180
STEP_S = 15
"""The level begins anew where the arrivals of so many seconds are a step …"""
STEP_DEVIATIONS = 4
"""… of more than so many standard deviations of a count; the square root of a count deviates by a half."""
TREND_NOISE = 0.00001
"""Variance that a minute adds to the trend, relative to the level's square."""


class Minute(NamedTuple):
    """Arrivals of one minute of the broker's clock."""

    number: int
    """Minutes since 1970."""
    arrivals: int
    seconds: int
    """Of the periods that ended in it."""

    @property
    def rate_m(self) -> int:
        """Arrivals a second, in thousandths."""
        return self.arrivals * MILLI // max(1, self.seconds)


class ForeseenRates(NamedTuple):
    """Answer of another library's forecaster."""

    predictor: str
    first: int
    """Number of the first minute …"""
    rates_m: tuple[int, ...]
    """… and the rates from it on, in thousandths."""

    def at(self, at_ms: int) -> int | None:
        """The rate in that minute; None if the answer does not reach it."""
        place = at_ms // MINUTE_MS - self.first
        return self.rates_m[place] if 0 <= place < len(self.rates_m) else None


class RateHistory:
    """Arrivals by minute, and the recent errors of the forecasts that were made. Bounded by MINUTES_KEPT."""

    def __init__(self) -> None:
        self._minutes: dict[int, Minute] = {}
        """By number, oldest first."""
        self._newest: Minute | None = None
        self._last: deque[tuple[int, int, int]] = deque()
        """The periods of the last LEVEL_S: end, arrivals, seconds."""
        self._made: deque[tuple[int, int]] = deque(maxlen=ERRORS_KEPT)
        """Minute that a forecast is for, and its rate."""
        self.errors_bp: deque[int] = deque(maxlen=ERRORS_KEPT)
        """Arrivals of the minute, in hundredths of a percent of the forecast."""

    def __repr__(self) -> str:
        return f"<RateHistory of {len(self._minutes)} minutes>"

    def minutes(self, count: int) -> list[Minute]:
        """The last minutes, so many at most; oldest first."""
        return list(islice(reversed(self._minutes.values()), count))[::-1]

    @property
    def last_m(self) -> int:
        """The rate over the last LAST_S, in thousandths; 0 without any period."""
        since_ms = self._last[-1][0] - LAST_S * MILLI if self._last else 0
        found = [(arrivals, seconds) for at_ms, arrivals, seconds in self._last if at_ms > since_ms]
        return sum(arrivals for arrivals, _ in found) * MILLI // max(1, sum(seconds for _, seconds in found))

    @property
    def level_m(self) -> int:
        """The rate behind the counts of the last LEVEL_S, filtered; 0 without any period. O(periods)."""
        level = variance = -1.0
        recent: deque[tuple[int, int]] = deque()
        for _, arrivals, seconds in self._last:
            rate, floor = arrivals / seconds, 1 / seconds
            recent.append((arrivals, seconds))
            while len(recent) > 1 and sum(each for _, each in recent) > STEP_S:
                recent.popleft()
            came, in_s = sum(each for each, _ in recent), sum(each for _, each in recent)
            if level < 0 or abs(sqrt(came) - sqrt(level * in_s)) > STEP_DEVIATIONS / 2:
                level = came / in_s
                variance = max(level, floor) / in_s
                continue
            variance += LEVEL_NOISE * seconds / 60 * max(level, floor) ** 2
            gain = variance / (variance + max(level, floor) / seconds)
            level, variance = level + gain * (rate - level), variance * (1 - gain)
        return max(0, round(level * MILLI))

    def add(self, rolled: DemandRolled) -> None:
        """One period more. O(1)."""
        self._last.append((rolled.at_ms, rolled.arrivals, rolled.period_s))
        while self._last[0][0] <= rolled.at_ms - LEVEL_S * MILLI:
            self._last.popleft()
        number = (rolled.at_ms - 1) // MINUTE_MS
        before = self._newest
        if before is not None and before.number >= number:
            minute = Minute(before.number, before.arrivals + rolled.arrivals, before.seconds + rolled.period_s)
        else:
            self._finish_minute()
            minute = Minute(number, rolled.arrivals, rolled.period_s)
        self._newest = self._minutes[minute.number] = minute
        if len(self._minutes) > MINUTES_KEPT:
            del self._minutes[next(iter(self._minutes))]

    def note(self, at_ms: int, forecast: ScaleForecast) -> None:
        """The forecast was made then; its error is known when its minute has passed."""
        number = at_ms // MINUTE_MS + forecast.horizon_s // 60
        if forecast.rate_m and (not self._made or self._made[-1][0] < number):
            self._made.append((number, forecast.rate_m))

    def mean_m(self, from_ms: int, to_ms: int) -> int | None:
        """The rate over these minutes, in thousandths; None if none of them is known."""
        numbers = range(from_ms // MINUTE_MS, max(from_ms // MINUTE_MS, to_ms // MINUTE_MS) + 1)
        found = [self._minutes[number] for number in numbers if number in self._minutes]
        seconds = sum(each.seconds for each in found)
        return sum(each.arrivals for each in found) * MILLI // seconds if seconds else None

    def _finish_minute(self) -> None:
        """The last minute is whole: forecasts for it have their errors."""
        done = self._newest
        if done is None:
            return
        while self._made and self._made[0][0] <= done.number:
            number, rate_m = self._made.popleft()
            if number == done.number:
                self.errors_bp.append(done.rate_m * 10_000 // rate_m)


def forecast(
    history: RateHistory,
    settings: ScaleSettings,
    at_ms: int,
    horizon_s: int,
    foreseen: ForeseenRates | None = None,
) -> ScaleForecast:
    """The expected arrivals at the horizon, and the rate above the recent errors. 1 ms for Kalman, less for others.

    `foreseen` is the newest answer of another library, where the settings name one. Where there is none for the
    horizon, the seasonal forecast stands in, and the result names it.
    """
    predictor, to_ms = settings.predictor, at_ms + horizon_s * MILLI
    rate_m: int | None = None
    if predictor in LIBRARY_PREDICTORS:
        rate_m = foreseen.at(to_ms) if foreseen is not None and foreseen.predictor == predictor else None
        predictor = SEASONAL if rate_m is None else predictor
    if predictor == SEASONAL:
        rate_m = max(history.level_m, _season_m(history, settings.season_s, to_ms))
    elif predictor == KALMAN:
        rate_m = _kalman_m(history.minutes(KALMAN_MINUTES), horizon_s, history.last_m)
    elif predictor == CONSTANT:
        rate_m = history.last_m
    assert rate_m is not None
    return ScaleForecast(
        predictor=predictor,
        rate_m=rate_m,
        upper_m=rate_m * _error_bp(history.errors_bp, settings.quantile) // 10_000,
        quantile=settings.quantile,
        horizon_s=horizon_s,
    )


def _error_bp(errors_bp: Sequence[int], quantile: int) -> int:
    """The error that so many percent of the recent ones stay at or below; at least none, and ERROR_MOST_BP at most."""
    if quantile <= LIMITS["quantile"][0]:
        return 10_000
    if len(errors_bp) < ERRORS_MIN:
        return ERROR_MOST_BP
    ordered = sorted(errors_bp)
    return min(ERROR_MOST_BP, max(10_000, ordered[-(-len(ordered) * quantile // 100) - 1]))


def _season_m(history: RateHistory, season_s: int, at_ms: int) -> int:
    """The highest rate at that time of earlier seasons, each over its own hour; 0 if none is known."""
    width_ms = SEASON_WIDTH_S * season_s // DAY_S * MILLI
    found = 0
    for season in range(1, DAYS_KEPT * DAY_S // season_s + 1):
        middle_ms = at_ms - season * season_s * MILLI
        found = max(found, history.mean_m(middle_ms - width_ms // 2, middle_ms + width_ms // 2) or 0)
    return found


def _kalman_m(minutes: Sequence[Minute], horizon_s: int, last_m: int) -> int:
    """Level and trend of the rates, filtered: a minute's rate is a level with the noise of counts. The last value with
    fewer than two minutes."""
    if len(minutes) < 2:
        return last_m
    level, trend = float(minutes[0].rate_m), 0.0
    p00, p01, p11 = level * level + 1.0, 0.0, level * level * 0.01 + 1.0
    for minute in minutes[1:]:
        level += trend
        scale = max(1.0, level * level)
        p00, p01 = p00 + 2 * p01 + p11 + LEVEL_NOISE * scale, p01 + p11
        p11 += TREND_NOISE * scale
        noise = max(1.0, level) * MILLI / max(1, minute.seconds)
        error, total = minute.rate_m - level, p00 + noise
        gain, slope = p00 / total, p01 / total
        level, trend = level + gain * error, trend + slope * error
        p00, p01, p11 = (1 - gain) * p00, (1 - gain) * p01, p11 - slope * p01
    return max(0, round(level + trend * horizon_s / 60))

"""The forecast program: ARIMA and Prophet over the rates of past minutes, in a process of its own.

It reads a question a line from its standard input, and writes an answer a line to its standard output. It ends with its
input. `python -m actors.planning.forecast_program`; the planner starts it (`actors.planning.forecast_process`).
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from projections.scaling.scale_settings import ARIMA, DAY_S, LIBRARY_PREDICTORS

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODULES = {"arima": "statsmodels", "prophet": "prophet"}
"""The package that each predictor needs."""
INSTALL = "pip install 'contrail[forecast]'"
ARIMA_MINUTES = 720
"""ARIMA sees so many of the last minutes; it takes half a second for them."""
ARIMA_ORDER = (2, 1, 1)
"""Autoregressive terms, differences and moving-average terms: over the logarithm of rates."""
PROPHET_WIDTH = 5
"""Prophet sees means of so many minutes: it takes some 0.2 s for 2000 of them."""
MINUTES_MIN = 30
"""With fewer minutes there is no answer."""
STEPS_MAX = 1440
"""Minutes to come, at most."""


class ForecastQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The past, and the number of minutes to come."""

    predictor: str
    first: int
    """Number of the first minute."""
    rates_m: tuple[int, ...]
    """From it on, without a gap; in thousandths."""
    steps: int
    season_s: int


class ForecastAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of the minutes behind those of the question, or the reason why there are none."""

    rates_m: tuple[int, ...] = ()
    error: str = ""


def answer(question: ForecastQuestion) -> ForecastAnswer:
    """The rates; an error of the library is one sentence."""
    if question.predictor not in LIBRARY_PREDICTORS or not 0 < question.steps <= STEPS_MAX:
        return ForecastAnswer(error=f"{question.predictor!r} forecasts no {question.steps} minutes")
    if len(question.rates_m) < MINUTES_MIN:
        return ForecastAnswer(error=f"{len(question.rates_m)} minutes are too few: {MINUTES_MIN} are the least")
    forecaster = _arima if question.predictor == ARIMA else _prophet
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits that stop early, and of old calls between libraries
            rates = forecaster(question)
    except ImportError as error:
        return ForecastAnswer(error=f"{MODULES[question.predictor]} is not installed here: `{INSTALL}` ({error})")
    except Exception as error:  # noqa: BLE001 - a fit may fail with any error, and the planner goes on
        return ForecastAnswer(error=f"{question.predictor} failed: {type(error).__name__}: {error}")
    most = 2 * max(question.rates_m)
    if len(rates) != question.steps or not all(rate == rate for rate in rates):  # noqa: PLR0124 - false for nan
        return ForecastAnswer(error=f"{question.predictor} gave no numbers")
    return ForecastAnswer(rates_m=tuple(round(min(max(0.0, rate), most)) for rate in rates))


def _arima(question: ForecastQuestion) -> Sequence[float]:
    import numpy as np  # noqa: PLC0415 - in this process alone
    from statsmodels.tsa.arima.model import ARIMA as Model  # noqa: PLC0415, N811 - likewise

    logs = np.log1p(np.array(question.rates_m[-ARIMA_MINUTES:], dtype=float))
    fitted = Model(logs, order=ARIMA_ORDER).fit(method_kwargs={"maxiter": 50})
    found: list[float] = np.expm1(fitted.forecast(question.steps)).tolist()
    return found


def _prophet(question: ForecastQuestion) -> Sequence[float]:
    import numpy as np  # noqa: PLC0415 - in this process alone
    import pandas as pd  # noqa: PLC0415 - likewise
    from prophet import Prophet  # noqa: PLC0415 - likewise

    count = len(question.rates_m) // PROPHET_WIDTH * PROPHET_WIDTH
    rates = np.array(question.rates_m[-count:], dtype=float).reshape(-1, PROPHET_WIDTH).mean(axis=1)
    end = question.first + len(question.rates_m)

    def times(minutes: NDArray[Any]) -> Any:
        return pd.to_datetime(minutes * 60, unit="s")

    places = end - count + PROPHET_WIDTH * np.arange(len(rates)) + PROPHET_WIDTH / 2
    model = Prophet(daily_seasonality=False, weekly_seasonality=False, yearly_seasonality=False, uncertainty_samples=0)
    if count * 60 >= 2 * question.season_s:
        model.add_seasonality("season", period=question.season_s / DAY_S, fourier_order=8)
    model.fit(pd.DataFrame({"ds": times(places), "y": rates}))
    coming = pd.DataFrame({"ds": times(end + np.arange(question.steps) + 0.5)})
    found: list[float] = model.predict(coming)["yhat"].tolist()
    return found


def main() -> None:
    """Answers until the input ends. Libraries that print do so to the error output."""
    logging.disable(logging.WARNING)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    decoder = msgspec.json.Decoder(ForecastQuestion)
    for line in sys.stdin.buffer:
        replies.write(msgspec.json.encode(answer(decoder.decode(line))) + b"\n")
        replies.flush()


if __name__ == "__main__":
    main()

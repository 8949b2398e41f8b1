"""ForecastProcess: the forecasters of other libraries, in a process that may be slow, and may be killed.

1. A question is asked every ASK_EVERY_S at most, and no decision waits for its answer.
2. An answer that does not come within its bound is given up: the process is killed, and the failure is counted. The
   next question starts another one.
3. An answer is of use until the minutes end that it foresees. Until there is one, another forecast stands in
   (`projections.scaling.forecast`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import msgspec

from actors.planning.forecast_program import INSTALL, MODULES, STEPS_MAX, ForecastAnswer, ForecastQuestion
from actors.planning.line_process import LineProcess
from core.errors import CallerError
from projections.scaling.forecast import ForeseenRates, Minute, RateHistory
from projections.scaling.scale_settings import LIBRARY_PREDICTORS, ScaleSettings

ASK_EVERY_S = 60.0
"""Interval of questions; minutes are their grain."""
FIRST_ANSWER_S = 60.0
"""Bound of a process's first answer: it imports its library."""
ANSWER_S = 20.0
"""Bound of each further answer."""
MORE_MINUTES = 3
"""Minutes that are foreseen beyond the horizon: an answer serves until the next one."""
MINUTES = 8 * 1440
"""Minutes of the past in a question, at most."""
LINE_MAX = 1 << 20
"""Bytes of an answer."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""A fit of small matrices takes ten times as long with threads that wait for each other on busy cores."""
COMMAND = (sys.executable, "-P", "-m", "actors.planning.forecast_program")

_logger = logging.getLogger(__name__)


def check_forecaster(predictor: str) -> None:
    """The predictor needs no other library, or this one is installed here; else CallerError has the command."""
    if predictor in LIBRARY_PREDICTORS and find_spec(MODULES[predictor]) is None:
        raise CallerError(
            f"planner.predictor: {predictor} needs {MODULES[predictor]}, which is not installed here: `{INSTALL}`"
        )


class ForecastProcess:
    """One event loop uses it."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self.foreseen: ForeseenRates | None = None
        """The newest answer."""
        self.failures = 0
        """Questions without an answer."""
        self.fault = ""
        """The last reason; empty after an answer."""
        self._process = LineProcess(command, LINE_MAX, os.environ | ONE_THREAD)
        self._query: asyncio.Task[None] | None = None
        self._asked_s = -ASK_EVERY_S

    def __repr__(self) -> str:
        return f"<ForecastProcess, {self.failures} failures, {self.fault or 'no fault'}>"

    def ask(self, settings: ScaleSettings, history: RateHistory, horizon_s: int) -> None:
        """A question is on its way, if the settings name a library's forecaster, none is being answered, and the last
        one was asked long enough ago."""
        loop = asyncio.get_running_loop()
        is_due = loop.time() - self._asked_s >= ASK_EVERY_S
        if settings.predictor not in LIBRARY_PREDICTORS or not is_due or self._is_busy:
            return
        self._asked_s = loop.time()
        minutes = history.minutes(MINUTES)
        if len(minutes) < 2:
            return
        question = _question(settings, minutes, horizon_s)
        self._query = asyncio.create_task(self._ask(question), name="forecast")

    async def stop(self) -> None:
        """The process is gone."""
        if self._query is not None:
            self._query.cancel()
            await asyncio.wait([self._query])
        await self._process.kill()

    @property
    def _is_busy(self) -> bool:
        return self._query is not None and not self._query.done()

    async def _ask(self, question: ForecastQuestion) -> None:
        bound_s = ANSWER_S if self._process.has_answered else FIRST_ANSWER_S
        try:
            line = await self._process.ask(msgspec.json.encode(question), bound_s)
            answer = msgspec.json.decode(line, type=ForecastAnswer)
        except TimeoutError:
            self._fail(f"{question.predictor} has not answered within {bound_s:g} s")
        except (EOFError, OSError, ValueError, msgspec.DecodeError) as error:  # ValueError: a line beyond the bound
            self._fail(f"the forecast process broke: {error}")
            await self._process.kill()
        else:
            if answer.error:
                self._fail(answer.error)
                return
            self.fault = ""
            first = question.first + len(question.rates_m)
            self.foreseen = ForeseenRates(question.predictor, first, answer.rates_m)

    def _fail(self, reason: str) -> None:
        self.failures += 1
        if reason != self.fault:
            _logger.warning("no forecast, another one stands in: %s", reason)
        self.fault = reason


def _question(settings: ScaleSettings, minutes: Sequence[Minute], horizon_s: int) -> ForecastQuestion:
    """Minutes without a period have the rate of the one before; the last one may go on, and is left out. `minutes` has
    two at least."""
    whole = minutes[:-1]
    first = max(whole[0].number, whole[-1].number - MINUTES + 1)
    known = {minute.number: minute.rate_m for minute in whole}
    rates_m: list[int] = []
    for number in range(first, whole[-1].number + 1):
        rates_m.append(known.get(number, rates_m[-1] if rates_m else 0))
    return ForecastQuestion(
        predictor=settings.predictor,
        first=first,
        rates_m=tuple(rates_m),
        steps=min(STEPS_MAX, 1 + -(-horizon_s // 60) + MORE_MINUTES),
        season_s=settings.season_s,
    )

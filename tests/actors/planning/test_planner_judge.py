"""A planner that asks a judge: when, on what, and what becomes of the answer."""

from __future__ import annotations

import random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from actors.planning.planner import JUDGE_EVERY_MS, AskJudge, PeriodEnded, Planner, PlannerCommand, RecordEvent
from core.events import ScaleDecided
from core.events.scale import JUDGE_VERSION, LATE, JudgedWorkers, ScaleJudgement
from projections.scaling.judge_plan import JudgePlan, judge_plan
from projections.scaling.scale_settings import OFF, ON, ScaleSettings
from tests.projections.scaling.demands import CAPACITY, PERIOD_S, START_MS, poisson, rolled

ARRIVALS = 40
ENOUGH = 16
"""Periods with as many arrivals as a simulation needs."""


class Asked:
    """A planner that is fed steady periods."""

    def __init__(self, judge: str = ON) -> None:
        self.planner = Planner(ScaleSettings(judge=judge), CAPACITY)
        self.plans: list[JudgePlan] = []
        self.decisions: list[ScaleDecided] = []
        self._random, self._periods = random.Random(1), 0

    def periods(self, count: int, answer: ScaleJudgement | None = None) -> None:
        """So many; the answer is that of the first one."""
        for _ in range(count):
            self._periods += 1
            demand = rolled(self._periods, poisson(self._random, ARRIVALS))
            now_us = (START_MS + self._periods * PERIOD_S * 1000) * 1000
            for command in self.planner.step(PeriodEnded(demand, 3, 0, answer=answer), now_us):
                self._note(command)
            answer = None

    def _note(self, command: PlannerCommand) -> None:
        match command:
            case AskJudge(plan):
                self.plans.append(plan)
            case RecordEvent(ScaleDecided() as event):
                self.decisions.append(event)


def answer(plan: JudgePlan, attained_bp: int) -> ScaleJudgement:
    workers = tuple(JudgedWorkers(number, attained_bp + 100 * number, 0) for number in plan.numbers)
    return ScaleJudgement(
        asked_ms=plan.asked_ms, rate_m=plan.rate_m, workers=workers, digest="d", absent="", version=JUDGE_VERSION
    )


def test_it_asks_once_a_minute() -> None:
    """From the time on when enough is known, and on the decision of that moment."""
    run = Asked()
    run.periods(ENOUGH - 8)
    assert run.plans == []
    run.periods(3 * JUDGE_EVERY_MS // 1000 // PERIOD_S + 8)

    assert 3 <= len(run.plans) <= 4
    first, second, *_ = run.plans
    assert second.asked_ms - first.asked_ms == JUDGE_EVERY_MS
    about = next(each for each in run.decisions if each.at_ms == first.asked_ms)
    assert about.required in first.numbers


@pytest.mark.parametrize("late", [False, True])
def test_an_answer_is_recorded_by_the_next_decision(late: bool) -> None:
    """An absence is named there, and changes nothing; the answer counts in those behind it, too."""
    run = Asked()
    run.periods(ENOUGH)
    plan = run.plans[0]
    given = answer(plan, 5_000)
    if late:
        given = replace(given, workers=(), digest="", absent=LATE)

    run.periods(3, given)

    *_, before, first, second, third = run.decisions
    assert (first.judged, second.judged, third.judged) == (given, UNSET, UNSET)
    fewest = before.required if late else plan.numbers[-1]
    assert [each.required for each in (first, second, third)] == [fewest] * 3
    assert run.planner.fold.judged == (None if late else given)


def test_the_plan_is_that_of_the_last_decision() -> None:
    """As it stands in the stream, on the inputs that it was made on."""
    run = Asked()
    while not run.plans:
        run.periods(1)
    inputs = run.planner._inputs
    assert inputs is not None
    assert judge_plan(inputs, run.decisions[-1]) == run.plans[0]


def test_without_the_setting_nothing_is_asked_or_recorded() -> None:
    """An answer that comes after the setting was taken back is dropped."""
    run = Asked(OFF)
    run.periods(ENOUGH)
    assert run.plans == []
    on = Asked()
    on.periods(ENOUGH)
    run.periods(1, answer(on.plans[0], 5_000))
    assert run.decisions[-1].judged is UNSET
    assert run.planner.fold.judged is None
    assert [each.target for each in run.decisions] == [each.target for each in on.decisions] + [
        run.decisions[-1].target
    ]

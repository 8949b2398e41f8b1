"""A judge's simulations: equal ones anywhere, in a process of their own, too."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator

import pytest

from actors.planning import judge_process
from actors.planning.judge_process import JudgeProcess
from api.process.planner import JUDGE_COMMAND
from core.events.scale import CapacityLearned, ScaleJudgement
from projections.scaling import judge_plan as plans
from projections.scaling.judge_plan import JudgePlan, judge_plan
from projections.scaling.scale_decision import decide_scale
from projections.scaling.scale_settings import ON, ScaleSettings
from replay.simulate.scale_judge import judge
from tests.fixtures.eventually import eventually
from tests.projections.scaling.demands import CAPACITY, cell, inputs, poisson, rolled

SETTINGS = ScaleSettings(judge=ON, ttft_ms=600)
DIGEST = "6da050b1267535ac5e636d0c024d9d37"
"""Of the judgement of `plan()` by JUDGE_VERSION. Another one needs a new version: recorded answers rest on it."""
BOUNDED = """
from replay.simulate import scale_judge as program
program.judge = lambda plan: bytes(program.MEMORY_BYTES)
program.main()
"""


def plan(monkeypatch: pytest.MonkeyPatch, capacity: CapacityLearned = CAPACITY) -> JudgePlan:
    """Some 150 requests with prompts of 0.06 to 0.14 s, of which a third follow others."""
    monkeypatch.setattr(plans, "SAMPLE_MIN", 64)
    random_, demand = random.Random(1), []
    for number in range(1, 3):
        arrivals = poisson(random_, 75)
        long = arrivals // 2
        cells = cell(arrivals - long, 1_500, 60, 3_000), cell(long, 6_000, 40, 6_000)
        demand.append(rolled(number, arrivals, cells))
    it = inputs(demand, SETTINGS, 15_000, capacity=capacity)
    found = judge_plan(it, decide_scale(it))
    assert found is not None
    return found


def test_more_workers_serve_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has all numbers of the plan, and the digest is that of this version."""
    it = plan(monkeypatch)

    found = judge(it)

    assert (found.asked_ms, found.rate_m, found.absent) == (it.asked_ms, it.rate_m, "")
    assert tuple(each.workers for each in found.workers) == it.numbers
    attained = [each.attainment_bp for each in found.workers]
    assert attained == sorted(attained)
    assert attained[0] < attained[-1]
    assert all(100 < each.cached_bp < 2_000 for each in found.workers), "a sixth of the prompts' tokens was cached"
    assert judge(it) == found
    assert found.digest == DIGEST


@pytest.fixture
async def process() -> AsyncIterator[JudgeProcess]:
    it = JudgeProcess(JUDGE_COMMAND)
    yield it
    await it.stop()


ANSWER_S = 120.0
"""The bound is another test's; here the cores may be full, and the process has a low priority."""


async def answered(process: JudgeProcess, it: JudgePlan) -> ScaleJudgement:
    process.ask("", it)
    await eventually(lambda: "" in process._answers, "an answer", timeout_s=ANSWER_S)
    found = process.take("")
    assert found is not None
    return found


async def test_the_program_answers_the_same(monkeypatch: pytest.MonkeyPatch, process: JudgeProcess) -> None:
    """Its memory is bounded: where a simulation takes too much, the process ends, and that is named."""
    monkeypatch.setattr(judge_process, "ANSWER_S", ANSWER_S)
    it = plan(monkeypatch)

    assert await answered(process, it) == judge(it)

    await process.stop()
    process._process.command = (sys.executable, "-c", BOUNDED)
    assert (await answered(process, it)).absent == "killed"

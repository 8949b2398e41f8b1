"""The judge's process: answers, late ones, processes that end, and answers to other questions."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest

from actors.planning import judge_process
from actors.planning.judge_process import JUDGED, JudgeProcess
from core.events.scale import JUDGE_VERSION, KILLED, LATE, WRONG, JudgedWorkers, ScaleJudgement
from projections.scaling.judge_plan import JudgePlan, JudgeRun
from tests.fixtures.eventually import eventually
from tests.projections.scaling.demands import CAPACITY, START_MS

HEAD = """
import json, sys, time
def answer(plan):
    found = {key: plan[key] for key in ("asked_ms", "rate_m")}
    workers = [[run[0], 9900, 10] for run in plan["runs"]]
    return found | {"workers": workers, "digest": "d", "absent": "", "version": JUDGE_VERSION}
""".replace("JUDGE_VERSION", str(JUDGE_VERSION))
ECHO = (
    HEAD
    + """
for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
"""
)


def program(text: str) -> tuple[str, ...]:
    return sys.executable, "-c", text


def plan(number: int = 0) -> JudgePlan:
    """Two runs of one request."""
    runs = tuple(JudgeRun(workers, workers, (0,)) for workers in (2, 3))
    return JudgePlan(
        asked_ms=START_MS + number,
        rate_m=1_000,
        ttft_ms=1_000,
        itl_ms=50,
        capacity=CAPACITY,
        warm=0,
        prompt_tokens=(100,),
        followed_tokens=(0,),
        output_tokens=(10,),
        families=(0,),
        runs=runs,
    )


def answer(number: int = 0, absent: str = "") -> ScaleJudgement:
    workers = () if absent else (JudgedWorkers(2, 9_900, 10), JudgedWorkers(3, 9_900, 10))
    digest = "" if absent else "d"
    return ScaleJudgement(
        asked_ms=START_MS + number, rate_m=1_000, workers=workers, digest=digest, absent=absent, version=JUDGE_VERSION
    )


@pytest.fixture
async def started() -> AsyncIterator[list[JudgeProcess]]:
    """Those that a test makes; they are stopped behind it."""
    found: list[JudgeProcess] = []
    yield found
    for each in found:
        await each.stop()
        assert each._process.pid is None


async def asked(it: JudgeProcess, number: int = 0, model: str = "") -> ScaleJudgement:
    it.ask(model, plan(number))
    assert it.take(model) is None, "no decision waits for it"
    await eventually(lambda: model in it._answers, "an answer")
    found = it.take(model)
    assert found is not None
    return found


async def test_answers_of_one_process(started: list[JudgeProcess]) -> None:
    """Each is taken once."""
    it = JudgeProcess(program(ECHO))
    started.append(it)
    assert await asked(it) == answer()
    pid = it._process.pid
    assert await asked(it, 1) == answer(1)
    assert it._process.pid == pid
    assert it.take("") is None
    assert (it.outcomes[JUDGED], sum(it.outcomes.values()), it.fault) == (2, 2, "")


async def test_a_late_process_is_killed_and_named(started: list[JudgeProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    """The next plan starts another one, and its answer takes the fault away."""
    monkeypatch.setattr(judge_process, "ANSWER_S", 0.3)
    it = JudgeProcess(program("import time; time.sleep(600)"))
    started.append(it)
    it.ask("", plan())
    await eventually(lambda: it._process.pid, "a process")

    await eventually(lambda: it.outcomes[LATE], "the end of the wait")
    await eventually(lambda: "" in it._answers, "its absence")
    assert it._process.pid is None

    assert it.take("") == answer(absent=LATE)
    assert it.fault == "late: no answer within 0.3 s"
    monkeypatch.setattr(judge_process, "ANSWER_S", 20.0)
    it._process.command = program(ECHO)
    assert await asked(it, 1) == answer(1)
    assert (it.outcomes[LATE], it.fault) == (1, "")


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        ("raise SystemExit(1)", KILLED),
        ("import os; input(); os.kill(os.getpid(), 9)", KILLED),
        ("input(); print('no JSON'); input()", WRONG),
        ("input(); print('x' * 2_000_000); input()", WRONG),
        (
            HEAD + "found = answer(json.loads(input())); found['asked_ms'] += 1; print(json.dumps(found)); input()",
            WRONG,
        ),
        (
            HEAD + "found = answer(json.loads(input())); found['workers'].pop(); print(json.dumps(found)); input()",
            WRONG,
        ),
        (
            HEAD + "found = answer(json.loads(input())); found['workers'][0][1] = 10001; print(json.dumps(found))",
            WRONG,
        ),
        (HEAD + "found = answer(json.loads(input())); found['absent'] = 'late'; print(json.dumps(found))", WRONG),
    ],
)
async def test_an_end_and_a_wrong_answer_are_named(started: list[JudgeProcess], text: str, absent: str) -> None:
    """The process is gone then."""
    it = JudgeProcess(program(text.replace("print(json.dumps(found))", "print(json.dumps(found), flush=True)")))
    started.append(it)
    assert await asked(it) == answer(absent=absent)
    assert it.outcomes == {JUDGED: 0, LATE: 0, KILLED: 0, WRONG: 0} | {absent: 1}
    assert it.fault.startswith(f"{absent}: ")
    assert it._process.pid is None


async def test_a_program_that_is_not_there_is_named(started: list[JudgeProcess]) -> None:
    """As one that ended."""
    it = JudgeProcess(("/no/such/program",))
    started.append(it)
    assert await asked(it) == answer(absent=KILLED)


async def test_one_plan_of_each_model_waits(started: list[JudgeProcess]) -> None:
    """The newest one; they are simulated one at a time, in the order in which models asked first."""
    it = JudgeProcess(program(ECHO))
    started.append(it)
    for number, model in enumerate(("a", "b", "a", "b")):
        it.ask(model, plan(number))
    assert list(it._waiting) == ["a", "b"]
    await eventually(lambda: it.outcomes[JUDGED] == 2, "two answers")
    assert (it.take("a"), it.take("b")) == (answer(2), answer(3))


async def test_the_end_of_a_lead_ends_the_process(started: list[JudgeProcess]) -> None:
    """In the middle of a simulation, too; no answer is left for the next lead."""
    it = JudgeProcess(program(ECHO))
    await asked(it)
    it.ask("", plan(1))
    await eventually(lambda: "" in it._answers, "an answer")
    it._process.command = program("import time; time.sleep(600)")
    await it._process.kill()
    it.ask("", plan(2))
    await eventually(lambda: it._process.pid, "a process")
    await it.stop()
    assert it._process.pid is None
    assert it.take("") is None

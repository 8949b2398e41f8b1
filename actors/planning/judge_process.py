"""JudgeProcess: the simulations that judge numbers of workers, in a process that may be slow, and may be killed.

1. One plan is simulated at a time. One more of each model waits at most, the newest; no decision waits for an answer.
2. An answer that does not come within ANSWER_S is given up: the process is killed. One that ends, or that answers
   another question, is killed, too. The reason is the answer then, and the next plan starts another process.
3. The process bounds its own memory (`replay.simulate.scale_judge`), and a plan bounds its requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from actors.planning.line_process import LineProcess
from core.events.scale import ABSENCES, JUDGE_VERSION, KILLED, LATE, WRONG, ScaleJudgement
from projections.scaling.judge_plan import JudgePlan
from projections.scaling.queue_model import ALL_BP

ANSWER_S = 20.0
"""Bound of each answer; that of a new process imports the simulator in it, too.
Beside programs that fill all cores, a process of low priority is late."""
LINE_MAX = 1 << 16
"""Bytes of an answer."""
JUDGED = "judged"
"""The outcome of a plan with an answer; the others are ABSENCES."""

_logger = logging.getLogger(__name__)


class JudgeProcess:
    """One event loop uses it. Of all models of a planner."""

    def __init__(self, command: Sequence[str]) -> None:
        """The `command` starts the program."""
        self.outcomes = dict.fromkeys((JUDGED, *ABSENCES), 0)
        """Plans by their outcome."""
        self.fault = ""
        """The last reason without an answer; empty after one."""
        self._process = LineProcess(command, LINE_MAX)
        self._waiting: dict[str, JudgePlan] = {}
        """By model, in the order in which they were asked for."""
        self._answers: dict[str, ScaleJudgement] = {}
        """By model, the newest that is not taken."""
        self._work: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<JudgeProcess, {self.outcomes}, {self.fault or 'no fault'}>"

    def ask(self, model: str, plan: JudgePlan) -> None:
        """The plan is simulated, now or after those of other models; one of this model that waits is given up."""
        self._waiting[model] = plan
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._judge_all(), name="judge")

    def take(self, model: str) -> ScaleJudgement | None:
        """The model's newest answer, or the reason why there is none, once; None if there is nothing new."""
        return self._answers.pop(model, None)

    async def stop(self) -> None:
        """The process is gone, and so are all plans and answers."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
        self._waiting.clear()
        self._answers.clear()
        await self._process.kill()

    async def _judge_all(self) -> None:
        while self._waiting:
            model = next(iter(self._waiting))
            plan = self._waiting.pop(model)
            self._answers[model] = await self._judge(plan)

    async def _judge(self, plan: JudgePlan) -> ScaleJudgement:
        try:
            line = await self._process.ask(msgspec.json.encode(plan), ANSWER_S)
            answer = msgspec.json.decode(line, type=ScaleJudgement)
        except TimeoutError:
            return await self._absent(plan, LATE, f"no answer within {ANSWER_S:g} s")
        except (EOFError, OSError) as error:
            return await self._absent(plan, KILLED, str(error))
        except (msgspec.DecodeError, ValueError) as error:  # ValueError: a line too long
            return await self._absent(plan, WRONG, str(error))
        if not is_answer(plan, answer):
            return await self._absent(plan, WRONG, "the answer is none to the question")
        self.outcomes[JUDGED] += 1
        self.fault = ""
        return answer

    async def _absent(self, plan: JudgePlan, reason: str, fault: str) -> ScaleJudgement:
        """The process is killed; returns the judge's absence."""
        self.outcomes[reason] += 1
        fault = f"{reason}: {fault}"
        if fault != self.fault:
            _logger.warning("the judge of the fleet's size is absent, %s", fault)
        self.fault = fault
        await self._process.kill()
        return ScaleJudgement(
            asked_ms=plan.asked_ms, rate_m=plan.rate_m, workers=(), digest="", absent=reason, version=JUDGE_VERSION
        )


def is_answer(plan: JudgePlan, answer: ScaleJudgement) -> bool:
    """The answer is one to that plan. No proof that the simulations were made: `replay verify --judge` is."""
    shares = (share for each in answer.workers for share in (each.attainment_bp, each.cached_bp))
    return (
        (answer.asked_ms, answer.rate_m, answer.absent) == (plan.asked_ms, plan.rate_m, "")
        and tuple(each.workers for each in answer.workers) == plan.numbers
        and all(0 <= share <= ALL_BP for share in shares)
        and bool(answer.digest)
    )

"""What is under way on a replica, as it says it again."""

from __future__ import annotations

from collections.abc import Callable

from actors.router.answer_progress import AnswerProgress
from actors.router.routed_request import Attempt, AttemptTable
from core.clock import ManualClock
from core.events import Event
from core.generation import Output
from core.ids import RequestId
from projections.folds.routing_fold import in_flight, restated_requests
from tests.actors.world import request
from tests.projections.facts import prompt, routed, worker_id


class OneToken:
    """A stream that gives a first token and no end."""

    async def run(self, take: Callable[[Output], bool]) -> None:
        take(Output(tokens=(1,)))

    def close(self) -> None:
        pass


async def test_a_restatement_names_what_the_fold_would_have() -> None:
    """Worker, weight, and when each prefill was expected to begin; nothing of the latter once it is done."""
    said: list[Event] = []
    attempts = AttemptTable(said.append, ManualClock(1_700_000_000_000))
    waiting, done = (routed(name, worker_id(1), prompt(1, 2), now_ms=1000, wait_us=250) for name in ("waiting", "done"))
    Attempt(waiting, OneToken(), attempts, 0)  # type: ignore[arg-type]
    answer = AnswerProgress(request([1]), 4096)
    await Attempt(done, OneToken(), attempts, 0).run(answer, lambda _: True, lambda: None)  # type: ignore[arg-type]
    told = dict(restated_requests(attempts.restated("test")))
    assert told[RequestId("waiting"), 0].begins_us == in_flight(waiting).begins_us == 1_000_250
    assert told[RequestId("done"), 0] == in_flight(done).prefilled()
    assert [type(event).__name__ for event in said] == ["RequestPrefilled"]

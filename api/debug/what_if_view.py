"""View of a scenario: the decisions of a window made again under other settings, fast enough for a slider."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import msgspec

from api.debug.keyframes import check_near
from api.debug.timeline.decision_table import DecisionTable
from core.errors import CallerError
from core.ids import StreamSeq
from core.subjects import ROUTING
from replay.recording.moment import AtSequence
from replay.recording.recording import Recording
from replay.recording.request_history import PLACES
from replay.whatif.first_token_fit import FirstTokenFit, first_token_fits
from replay.whatif.outcome import DecisionChange, Outcome
from replay.whatif.scenario import Scenario
from replay.whatif.whatif import what_if

WINDOW_MAX = 2000
"""Most decisions made again for one question: about two seconds."""
AROUND = 6000
"""Messages of the routing stream before and behind the window from which times to first tokens are fitted."""
WORST = 50
"""Most decisions listed, those that change most."""


class WhatIfQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scenario over a window of decisions."""

    from_n: int
    to_n: int
    settings: dict[str, Any] = {}
    without: tuple[str, ...] = ()
    delay_ms: int = 0


_decoder = msgspec.json.Decoder(WhatIfQuestion)


def parse_question(body: bytes) -> WhatIfQuestion:
    """The question in a body; CallerError names the fault."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CallerError(f"the question cannot be read: {error}") from error


class WhatIfAnswers:
    """Answers to what-if questions about one recording; the fit of the last window is reused."""

    def __init__(self) -> None:
        self._window: tuple[Recording, int, int] | None = None
        self._fitted: dict[str, FirstTokenFit] = {}

    def __repr__(self) -> str:
        return f"<WhatIfAnswers about {self._window}>"

    def answer(self, recording: Recording, decisions: DecisionTable, question: WhatIfQuestion) -> dict[str, Any]:
        """CallerError if the window is empty or too large, StateNotFolded if it is not folded yet."""
        numbers = decisions.column("n")
        low, high = bisect_left(numbers, question.from_n), bisect_left(numbers, question.to_n + 1)
        if not 0 < high - low <= WINDOW_MAX:
            raise CallerError(f"ask about 1 to {WINDOW_MAX} decisions at once, not about {high - low}")
        scenario = Scenario.parse(
            {"settings": question.settings, "without": question.without, "delay_ms": question.delay_ms},
        )
        start, end = numbers[low] // PLACES, numbers[high - 1] // PLACES + 1
        check_near(recording, recording.cursor(AtSequence(ROUTING, StreamSeq(start))))
        if self._window != (recording, start, end):
            self._fitted = first_token_fits(recording.requests, start - AROUND, end + AROUND)
            self._window = recording, start, end
        (outcome,) = what_if(recording, [scenario], start, end, fitted=self._fitted, worst=WORST)
        return _shown(outcome, decisions, (numbers[low], numbers[high - 1]))


def _shown(outcome: Outcome, decisions: DecisionTable, window: tuple[int, int]) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.to_builtins(outcome)
    for name in ("worst", "losses", "changes"):
        del answer[name]
    numbers = {(change.seq, change.request, change.attempt): _number(decisions, change) for change in outcome.changes}

    def rows(changes: list[DecisionChange]) -> list[dict[str, Any]]:
        return [
            {
                "n": numbers[change.seq, change.request, change.attempt],
                "worker": change.new_worker,
                "regret_ms": round(change.regret_ms, 1),
                "regret_blocks": change.regret_blocks,
                "ttft_ms": _first_token_ms(decisions, numbers[change.seq, change.request, change.attempt]),
            }
            for change in changes
        ]

    before, after = zip(*outcome.first_tokens, strict=True) if outcome.first_tokens else ((), ())
    return answer | {
        "first_tokens": {"recorded": list(before), "new": [round(ms, 1) for ms in after]},
        "from_n": window[0],
        "to_n": window[1],
        "better": outcome.better,
        "timed": outcome.timed,
        "worst": rows(outcome.worst),
        "losses": rows(outcome.losses),
        "changes": rows(outcome.changes),
    }


def _first_token_ms(decisions: DecisionTable, number: int) -> int:
    """The recorded time to first token of the decision; -1 without one."""
    attempt = decisions.history.at(number)
    return -1 if attempt is None or attempt.begun_ms >= 0 else attempt.ttft_ms


def _number(decisions: DecisionTable, change: DecisionChange) -> int:
    """The decision's number on the page; -1 if the timeline does not have it."""
    history = decisions.history
    found = (history.attempt(row) for row in history.span(change.seq, change.seq + 1))
    return next((each.at for each in found if (each.request, each.attempt) == (change.request, change.attempt)), -1)

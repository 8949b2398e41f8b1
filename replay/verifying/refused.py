"""Refused: a request that no worker could take, asked again.

Its prompt is not in the log; but who was left out and why depends on nothing of the prompt but its block size.
"""

from __future__ import annotations

from typing import NamedTuple

from core.ids import RequestId, WorkerId
from projections.policy.decide import decide, recorded_exclusions
from projections.policy.view import RouteRequest, View
from replay.playback import Refusal
from replay.recorded_prompt import RecordedPrompt


class Again(NamedTuple):
    """What comes out now."""

    same: bool
    worker: WorkerId | None
    """Who could have taken it; None if nobody."""
    excluded: dict[str, tuple[int, bytes]]
    """Who was left out, as a record shows it."""


def refused_again(at: Refusal) -> Again:
    """The request asked again with every block size that its prompt may have been cut into."""
    found = [_asked(at, size) for size in _block_sizes(at.view, at.event.model)]
    return next((again for again in found if again.same), found[0])


def _asked(at: Refusal, block_size: int) -> Again:
    event, prompt = at.event, RecordedPrompt(1, block_size, b"")
    request = RouteRequest(RequestId(event.request), event.attempt, event.model, prompt)
    decision = decide(at.view, request, at.settings, event.now_ms, 0)
    excluded = recorded_exclusions(decision.excluded)
    return Again(decision.worker is None and excluded == event.excluded, decision.worker, excluded)


def _block_sizes(view: View, model: str) -> list[int]:
    """Those of the model's workers, and one that nobody has: whoever had it may be gone."""
    joined = [member.joined for member in view.state.alive() if member.joined is not None]
    sizes = sorted({each.block_size for each in joined if each.model == model})
    return [*sizes, max((each.block_size for each in joined), default=0) + 1]

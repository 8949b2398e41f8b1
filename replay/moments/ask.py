"""How a prompt would be routed on a state at hand: the decision as it would have been made there and then."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from core.errors import CallerError
from core.ids import ReplicaId, RequestId
from core.prompt import Prompt
from projections.ahead import Ahead
from projections.decide import decide, record
from projections.view import RouteRequest, View
from replay.explaining.draw import drawn
from replay.explaining.explain import excluded_named, rows
from replay.explaining.form import Row, RunnerUp
from replay.explaining.ground import of_decision
from replay.explaining.knowledge import knowledge
from replay.explaining.reasons import runner_up, why
from replay.moments.at import Stand
from replay.moments.held import settings_of

ASKED = RequestId("asked")
NOBODY = ReplicaId("")
"""Decides by the log alone: it has said nothing, and knows nothing of its own."""


class Asking(NamedTuple):
    """A prompt, in tokens, as a request for it would bring it."""

    tokens: bytes
    """Little-endian uint32 each."""
    model: str
    scope: bytes = b""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The decision; the keys of `contrail replay at --prompt … --json`."""

    model: str
    prompt_tokens: int
    block_size: int
    prompt_blocks: int
    policy: str
    settings: dict[str, Any]
    worker: str | None
    """None: nobody could have taken it."""
    worker_name: str | None
    drawn: bool
    """Whether a draw decides: then the worker is one of several, by their probabilities."""
    predicted_cached_tokens: int
    why: str
    runner_up: RunnerUp | None
    candidates: list[Row]
    excluded: dict[str, dict[str, Any]]


def ask(stand: Stand, asking: Asking, hash_seed: int) -> Asked:
    """What the replica whose belief it is would have decided, or else one that knows nothing but the log; the seed of a
    draw is 0. CallerError if no worker of the model was there."""
    recording, names = stand.recording, stand.recording.names
    prompt = Prompt(asking.tokens, _block_size(stand, asking.model), hash_seed, asking.scope)
    request = RouteRequest(ASKED, 0, asking.model, prompt)
    view = stand.belief.view if stand.belief is not None else _by_log(stand)
    settings = stand.belief.settings if stand.belief is not None else settings_of(stand.state)
    decision = decide(view, request, settings, stand.time_ms, seed=0)
    left_out = {reason: (len(ids), ids) for reason, ids in sorted(decision.excluded.items())}
    if decision.worker is None:
        on, known = None, {}
    else:
        event = record(decision, request, settings, 0)
        on = of_decision(view, request, settings, event, decision)
        known = knowledge(recording, event, stand.time_ms, [scored.candidate.worker for scored in on.ranked])
    return Asked(
        model=asking.model,
        prompt_tokens=prompt.tokens,
        block_size=prompt.block_size,
        prompt_blocks=prompt.blocks_to_hold,
        policy=settings.policy,
        settings=settings.to_mapping(),
        worker=decision.worker,
        worker_name=None if decision.worker is None else names.worker(decision.worker),
        drawn=settings.policy == "random" or drawn(settings),
        predicted_cached_tokens=decision.predicted_cached_tokens,
        why="no worker could have taken it" if on is None else why(on, names.worker),
        runner_up=None if on is None else runner_up(on, names.worker),
        candidates=[] if on is None else rows(on, known, names),
        excluded=excluded_named(left_out, names),
    )


def models(stand: Stand) -> list[str]:
    """Those that some worker served, sorted."""
    return sorted({member.joined.model for member in stand.state.alive() if member.joined is not None})


def _by_log(stand: Stand) -> View:
    return View(stand.state, NOBODY, Ahead(), MappingProxyType({}))


def _block_size(stand: Stand, model: str) -> int:
    joined = (member.joined for member in stand.state.alive())
    sizes = [each.block_size for each in joined if each is not None and each.model == model]
    if not sizes:
        there = ", ".join(models(stand)) or "none"
        raise CallerError(f"no worker served the model {model!r} then; served were {there}")
    return max(set(sizes), key=sizes.count)

"""How a prompt would be routed on a state at hand: the decision as it would have been made there and then."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from core.errors import CallerError
from core.ids import ReplicaId, RequestId
from core.prompt import Prompt
from core.subjects import ROUTING
from projections.folds.pending_events import PendingEvents
from projections.policy.decide import decide, record
from projections.policy.prefill_time import PrefillTime
from projections.policy.view import RouteRequest, View
from replay.explaining.estimated import estimates
from replay.explaining.explain import excluded_named, rows
from replay.explaining.form import Row, RunnerUp
from replay.explaining.ground import of_decision, routed_event
from replay.explaining.knowledge import knowledge
from replay.explaining.reasons import chances, runner_up, why
from replay.explaining.timed_form import Estimates
from replay.moments.at import Stand
from replay.moments.held import settings_of
from replay.routing_index import Tried

ASKED = RequestId("asked")
LOOK_MAX = 256
"""Decisions that are looked through for what was learned by then."""
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
    estimates: Estimates | None
    """By what it was estimated how long candidates take, by policies that do."""
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
    request = RouteRequest(ASKED, 0, asking.model, prompt, time=_learned(stand, asking.model))
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
        drawn=on is not None and len(on.ranked) > 1 and bool(chances(on)),
        estimates=None if on is None else estimates(on),
        predicted_cached_tokens=decision.predicted_cached_tokens,
        why="no worker could have taken it" if on is None else why(on, names.worker),
        runner_up=None if on is None else runner_up(on, names.worker),
        candidates=[] if on is None else rows(on, known, names),
        excluded=excluded_named(left_out, names),
    )


def models(stand: Stand) -> list[str]:
    """Those that some worker served, sorted."""
    return sorted({member.joined.model for member in stand.state.alive() if member.joined is not None})


def _learned(stand: Stand, model: str) -> PrefillTime | None:
    """How long prefills of the model last, as the newest decision by then says that went by it: the replica's, or else
    anybody's; None if none of the last LOOK_MAX does."""
    decisions = (tried for tried in _by_then(stand) if tried.worker and tried.model == model)
    for tried in islice(decisions, LOOK_MAX):
        event = routed_event(stand.recording, tried)
        if event is not None and event.prefill_time:
            return PrefillTime(*event.prefill_time)
    return None


def _by_then(stand: Stand) -> Iterator[Tried]:
    """The attempts up to the moment, that at which a belief is known included; the newest first."""
    index, belief, at = stand.recording.index, stand.belief, stand.state.cursor.get(ROUTING)
    if belief is None:
        return index.until(at.seq if at is not None else 0)
    if (last := belief.decision) is None:
        return iter(())
    return (tried for tried in index.until(last.seq, last.replica) if tried.at <= last.at)


def _by_log(stand: Stand) -> View:
    return View(stand.state, NOBODY, PendingEvents(), MappingProxyType({}))


def _block_size(stand: Stand, model: str) -> int:
    joined = (member.joined for member in stand.state.alive())
    sizes = [each.block_size for each in joined if each is not None and each.model == model]
    if not sizes:
        there = ", ".join(models(stand)) or "none"
        raise CallerError(f"no worker served the model {model!r} then; served were {there}")
    return max(set(sizes), key=sizes.count)

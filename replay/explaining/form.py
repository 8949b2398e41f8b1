"""What an explanation is made of: the keys of `contrail explain --json`, which never change their meaning.

Costs and blocks are in blocks, times in milliseconds. `None` stands for what the log does not tell.
"""

from __future__ import annotations

from typing import Any

import msgspec

from replay.explaining.prefill_form import Hint, Prefilled, PrefillJob
from replay.explaining.queue_form import Queued
from replay.explaining.timed_form import Estimates, Hold, SessionOrder, Timed


class Knowledge(msgspec.Struct, frozen=True, kw_only=True):
    """What the index knew of one worker at the decision, and how old that was, by the log's clock."""

    stream: str | None
    """The kv stream that the worker writes to."""
    seq: int | None
    """Of the worker's newest message there that was folded."""
    age_ms: int | None
    """How long before the decision it was stored; None if it was not found near enough."""
    unseen: int
    """Messages of the worker that stood in the log then and were not folded yet."""
    unseen_ms: int | None
    """How long before the decision the oldest of them was stored."""
    load_age_ms: int | None
    """How long before the decision the worker's newest load report was stored."""


class InFlight(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker was busy with when the decision was made, as the replica saw it."""

    requests: int
    blocks: int
    prefill_tokens: int | None
    """Queued or being computed; None if the state was not folded."""
    ahead: int | None
    """Of the requests: those that only this replica knew of, because its events were not in the log it had read."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate with its cost taken apart; costs in blocks, under `time` and `session` in milliseconds."""

    worker: str
    name: str
    chosen: bool
    cost: float
    prefill_cost: float
    decode_cost: float
    request_cost: float
    overlap: int
    """Blocks of the prompt cached there, in any tier."""
    pending: int
    """Blocks of the prompt that were being computed there for another request."""
    to_prefill: float
    active_blocks: int
    active_requests: int
    waiting: int
    cache_known: bool
    overlap_device: int
    """Of `overlap`, those on the device."""
    wait_cost: float = 0.0
    """Part of the cost under `time`, in milliseconds: how long prefills there would hold it up."""
    timed: Timed | None = None
    """What was estimated, by policies that do; under `time` the four costs add up to `cost` to the microsecond, or are
    0 where the log does not tell by which weights."""
    probability: float | None
    """Of being drawn, where a draw decided."""
    in_flight: InFlight
    knowledge: Knowledge


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """One change after which, all else equal, the runner-up would have been chosen."""

    what: str
    """Of the runner-up: `cached_blocks` (on the device), `active_blocks`, `prefill_tokens`, `active_requests`,
    `waiting`, `wait_ms`; or a setting: `prefill_weight`, `decode_weight`, `request_weight`."""
    was: float
    would_be: float
    """The value nearest to `was` at which it is chosen."""
    text: str


class RunnerUp(msgspec.Struct, frozen=True, kw_only=True):
    """The next best candidate, and what it lacked."""

    worker: str
    name: str
    cost_more: float
    """In blocks, or milliseconds; negative if it was cheaper."""
    needs: list[Need]
    text: str


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """The time to the first token, taken apart as far as the log knows."""

    ttft_ms: int
    before_ms: int
    """From the arrival to this decision: its wait for a free place, and attempts before it. (Tokenizing comes before
    the arrival.)"""
    behind_ms: int
    """From there until those that were to be prefilled before it on the same worker had their first tokens."""
    behind_requests: int
    behind_tokens: int
    """What these were expected to compute when they were routed."""
    rest_ms: int
    """What is left: its own prefill, and the way there and back."""
    overlapped: bool
    """Whether one of those before it came to its first token later than it did: then there is no telling them apart."""


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted against real reuse, and the event that was missing or late."""

    predicted_blocks: int
    real_blocks: int
    verdict: str
    """`as_predicted`, `removed_unseen`, `removed_later`, `cleared`, `ended`, `stored_unseen`, `stored_later`,
    `pending`, `unknown_cache`, `never_in_log`, `believed` (under `approximate`), `no_first_token`."""
    first_block: int | None = None
    """The blocks of the prompt that made the difference, counted from 0 …"""
    blocks: int = 0
    stream: str | None = None
    seq: int | None = None
    """Where the event stands that explains it."""
    after_decision_ms: int | None = None
    """When that was stored; negative if before the decision."""
    request: str | None = None
    """Whose prefill was counted on."""
    text: str


class Attempt(msgspec.Struct, kw_only=True):
    """One decision, what it stood on, and what came of it."""

    attempt: int
    seq: int
    time: str
    """When the log stored it."""
    decided: str
    """When it was made, by the log's clock."""
    replica: str
    replica_name: str
    policy: str
    settings_revision: int
    settings: dict[str, Any] | None
    """Those in force."""
    settings_changed: dict[str, Any]
    """Of these, what differs from the defaults."""
    prompt_tokens: int
    block_size: int
    prompt_blocks: int
    worker: str
    worker_name: str
    candidates: list[Row]
    candidates_total: int
    excluded: dict[str, dict[str, Any]]
    local: dict[str, list[str]]
    """What only that replica knew: worker, as name and id, to reasons."""
    cursor: dict[str, int]
    digest: str
    predicted_cached_tokens: int
    why: str
    runner_up: RunnerUp | None
    draw: float | None
    """Where in [0, 1) the draw fell, where one decided."""
    again: str
    """`same` if the decision was made again from the log with this result, `differs`, or `not_made` where that would
    take long or cannot be."""
    estimates: Estimates | None = None
    """By what it was estimated how long candidates take, by policies that do."""
    session: SessionOrder | None = None
    """Whose turn it was, under `session`."""
    session_key: str = ""
    """The keyed hash of the session that the client named; empty if it named none."""
    session_parent: str = ""
    """That of the session which began it, such as a sub-agent's parent."""
    drawn_two: list[str] = msgspec.field(default_factory=list)
    """The two workers that `power-of-two` drew, the first one first; empty if the record does not tell."""
    hold: Hold | None = None
    """The part that holding in the router had in it, if any."""
    doubts: list[str]
    """Why the log may not show all that the decision stood on."""
    queued: Queued | None = None
    """Its wait for a worker with a free place, if there was one."""
    told_tokens: int = 0
    """Tokens of the answer that the client had already, from attempts before whose workers broke off."""
    compared: bool = False
    """The answer was made again from its start, and these tokens compared; else they stand at the prompt's end."""
    real_cached_tokens: int | None = None
    ttft_ms: int | None = None
    phases: Phases | None = None
    reuse: Reuse | None = None
    hint: Hint | None = None
    """The prefill worker that the decision preferred."""
    prefill: Prefilled | None = None
    """Where the prompt was computed; None where nobody else could have done it, or no token came."""
    job: PrefillJob | None = None
    """What the worker asked others for."""
    outcome: str | None = None
    output_tokens: int | None = None
    duration_ms: int | None = None
    detail: str = ""


class Rejection(msgspec.Struct, kw_only=True):
    """No worker could take it, none had a place for it in time, or it failed inside its replica's process."""

    attempt: int
    time: str
    reason: str
    """`unknown` where this program cannot read the event."""
    status: int
    excluded: dict[str, dict[str, Any]]
    queued: Queued | None = None
    """Its wait before."""
    detail: str = ""
    """Of `internal`: what failed inside the replica's process, and where."""


class Explanation(msgspec.Struct, kw_only=True):
    """All that the log knows of one request."""

    request: str
    model: str
    attempts: list[Attempt]
    rejections: list[Rejection]
    uses: int = 1
    """How many requests had this id; the attempts are those of the last one that was routed."""
    unread: list[str] = []
    """A sentence for each of its attempts whose record this program cannot read."""

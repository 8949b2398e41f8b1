"""The parts of an explanation: the keys of `contrail explain --json`, which never change their meaning.

Costs and blocks are in blocks, times in milliseconds. Times are those of the log's clock, but for durations that a
worker or a replica measured on its own. `after_ms` of a prefill job counts from when the log stored the request for it.
`None` stands for what the log does not tell.
"""

from __future__ import annotations

from typing import Any

import msgspec


class TimeEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """How long one candidate would have taken, as was estimated."""

    tokens: int
    """Of the prompt, that it would have computed."""
    own_ms: float | None
    """How long that lasts; None where the policy does not ask, or the log does not tell."""
    outstanding_ms: float
    """How long prefills that the worker had would have held it up …"""
    held_ms: float
    """… and how long those that the router held, and would have sent there before it; or what it computed for other
    replicas when it declined a request."""
    decode_tokens: int
    """How many tokens fit into the active blocks there."""


class EstimateBasis(msgspec.Struct, frozen=True, kw_only=True):
    """What the estimates of a decision went by. Under `time` the cost of a candidate is the sum of

    own_weight * own_ms + (outstanding_ms + held_ms) + active_weight * decode_tokens * per_token_us / 1000
    + own_request_weight * own_ms * active_requests

    each term rounded down to a microsecond, the price of a block to a nanosecond; under `session` it is what the wait
    is longer than session_wait_max_ms.
    """

    exact: bool
    """Whether that gives every recorded cost to the microsecond; else nothing is taken apart."""
    weights: dict[str, float]
    """The settings above by name; empty if not `exact`."""
    weights_known: bool
    """Whether the log has them; else these are the defaults."""
    base_ms: float
    """A prefill was taken to last so long …"""
    per_token_us: float
    """… and so many microseconds for each token."""
    source: str
    """Of these two: `set`, `learned` by the replica, or `default`: it had yet to learn them."""


class PassedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that comes before the chosen one in a session's order."""

    worker: str
    name: str
    wait_ms: float


class SessionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Whose turn it was under `session`: workers stand in the order of a hash of the session and the worker."""

    of: str
    """`session`: the client named one; `prefix`: requests whose prompts begin alike are one; `request`: the prompt is
    too short for that."""
    key: str
    """The session's key; the hash of the prompt's first `blocks` blocks; or the request's id."""
    blocks: int
    """0 but for `prefix`."""
    position: int | None
    """The chosen worker's place in the order, from 1; None if the log does not tell of all before it."""
    wait_max_ms: float
    passed: list[PassedWorker]
    """Those before it, in order; each has more to wait for than that, or than the chosen one."""


class PrefillWhileHeld(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose prefill on the chosen worker ended while this one was held for that worker."""

    request: str
    tokens: int
    """That it was expected to compute."""
    after_ms: int
    """When its first token came, after this one was held, by the log's clock."""


class ConcurrentHold(msgspec.Struct, frozen=True, kw_only=True):
    """Another request that the same replica held when this one was sent."""

    request: str
    tokens: int
    """Of its prompt."""
    worker: str
    name: str
    """Where it went in the end."""
    after_ms: int
    """How much later than this one it was sent."""


class HoldExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The part that holding had in a decision."""

    held_ms: int | None
    """How long this request was held; None if it was not."""
    by: list[PrefillWhileHeld]
    """What the chosen worker computed meanwhile, in the order in which it was done."""
    beside: list[ConcurrentHold]
    """Who was held with it, in the order in which they were sent; those placed before it make `held_ms` of the
    candidates."""


class QueueWait(msgspec.Struct, frozen=True, kw_only=True):
    """No worker had a place for it when it came, or the right one still computed other prompts."""

    time: str
    """When the log stored that."""
    why: str
    """Of `core.events.routing.WAITS_FOR`, or `prefill`: it was held."""
    priority: int
    tenant: str
    depth: int
    """How many waited already."""
    waited_ms: int | None
    """Until it was routed or ended; None if the log does not tell."""


class PrefillHint(msgspec.Struct, frozen=True, kw_only=True):
    """The prefill worker that the router named to the chosen worker."""

    worker: str
    name: str
    tokens: int
    """How much of the prompt it held."""
    text: str
    """Why that one."""


class PrefillJobAttempt(msgspec.Struct, kw_only=True):
    """One prefill worker's try at a job."""

    attempt: int
    """The requester counts who takes the job, from 0; -1 for one that gave up without having the prompt."""
    worker: str
    name: str
    started_seq: int | None = None
    """In the jobs stream."""
    started: str | None = None
    after_ms: int | None = None
    """When it started."""
    delivery: int | None = None
    """How often the queue had handed it out; 0 if the requester offered it directly."""
    outcome: str = "unanswered"
    """`completed`, `failed`, `dead`: handed out too often; `unanswered`: the log tells of no answer."""
    ended_seq: int | None = None
    ended: str | None = None
    ended_after_ms: int | None = None
    compute_ms: int | None = None
    """By its own clock."""
    cached_tokens: int | None = None
    """Prompt tokens that it took from its cache."""
    blocks: int | None = None
    """In each group of layers."""
    keep_ms: int | None = None
    reason: str = ""
    """Why it failed, or how the worker ended that did not answer."""
    used: bool = False
    """Whether its blocks were pulled."""


class PrefillJobTrace(msgspec.Struct, kw_only=True):
    """One job by its events."""

    job: str
    requester: str
    requester_name: str
    asked_seq: int | None = None
    """In the jobs stream; so are the others."""
    asked: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Those that the requester had."""
    wait_max_ms: int | None = None
    tries: list[PrefillJobAttempt] = msgspec.field(default_factory=list)
    outcome: str = "open"
    """`pulled`, `cancelled`; `requester_ended`: it has no other end; `open`: the log tells of none."""
    reason: str = ""
    """Why it was cancelled, or how the requester ended."""
    detail: str = ""
    ended_seq: int | None = None
    ended: str | None = None
    ended_after_ms: int | None = None
    worker: str | None = None
    """Whose blocks were pulled."""
    name: str | None = None
    blocks: int | None = None
    bytes: int | None = None
    tokens: int | None = None
    """Prompt tokens that the requester did not compute."""
    transport: str | None = None
    wait_ms: int | None = None
    """From asking to the answer, or to giving up, by the requester's clock."""
    pull_ms: int | None = None
    lacks: str = ""
    """What of it the log does not tell, and why."""


class PrefillOutcome(msgspec.Struct, kw_only=True):
    """The verdict of the worker that was to decode, with its inputs, and what came of it."""

    remote: bool
    reason: str
    """`long`: asked for elsewhere; `short`, `no_prefill_worker`, `queue_full`, `log_away`, `busy`: computed there."""
    uncached_tokens: int
    queued: int
    workers: int
    min_tokens: int
    queue_max: int
    log_away: bool
    busy: bool
    outcome: str
    """`pulled`, or why the worker computed the prompt after all; empty if it asked nobody."""
    detail: str
    worker: str | None
    """The prefill worker that computed it."""
    name: str | None
    pulled_tokens: int
    wait_ms: int
    pull_ms: int
    text: str
    """The verdict in words."""
    came: str
    """What came of it in words."""


class Freshness(msgspec.Struct, frozen=True, kw_only=True):
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


class WorkerInFlight(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker was busy with when the decision was made, as the replica saw it."""

    requests: int
    blocks: int
    prefill_tokens: int | None
    """Queued or being computed; None if the state was not folded."""
    ahead: int | None
    """Of the requests: those that only this replica knew of, because its events were not in the log it had read."""


class CandidateRow(msgspec.Struct, frozen=True, kw_only=True):
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
    timed: TimeEstimate | None = None
    """What was estimated, by policies that do; under `time` the four costs add up to `cost` to the microsecond, or are
    0 where the log does not tell by which weights."""
    probability: float | None
    """Of being drawn, where a draw decided."""
    in_flight: WorkerInFlight
    knowledge: Freshness


class RequiredChange(msgspec.Struct, frozen=True, kw_only=True):
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
    needs: list[RequiredChange]
    text: str


class FirstTokenPhases(msgspec.Struct, frozen=True, kw_only=True):
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


class CachePrediction(msgspec.Struct, frozen=True, kw_only=True):
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


class AttemptExplanation(msgspec.Struct, kw_only=True):
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
    candidates: list[CandidateRow]
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
    estimates: EstimateBasis | None = None
    """By what it was estimated how long candidates take, by policies that do."""
    session: SessionOrder | None = None
    """Whose turn it was, under `session`."""
    session_key: str = ""
    """The keyed hash of the session that the client named; empty if it named none."""
    session_parent: str = ""
    """That of the session which began it, such as a sub-agent's parent."""
    drawn_two: list[str] = msgspec.field(default_factory=list)
    """The two workers that `power-of-two` drew, the first one first; empty if the record does not tell."""
    hold: HoldExplanation | None = None
    """The part that holding in the router had in it, if any."""
    doubts: list[str]
    """Why the log may not show all that the decision stood on."""
    queued: QueueWait | None = None
    """Its wait for a worker with a free place, if there was one."""
    told_tokens: int = 0
    """Tokens of the answer that the client had already, from attempts before whose workers broke off."""
    compared: bool = False
    """The answer was made again from its start, and these tokens compared; else they stand at the prompt's end."""
    real_cached_tokens: int | None = None
    ttft_ms: int | None = None
    phases: FirstTokenPhases | None = None
    reuse: CachePrediction | None = None
    hint: PrefillHint | None = None
    """The prefill worker that the decision preferred."""
    prefill: PrefillOutcome | None = None
    """Where the prompt was computed; None where nobody else could have done it, or no token came."""
    job: PrefillJobTrace | None = None
    """What the worker asked others for."""
    outcome: str | None = None
    output_tokens: int | None = None
    duration_ms: int | None = None
    detail: str = ""


class RejectionExplanation(msgspec.Struct, kw_only=True):
    """No worker could take it, none had a place for it in time, or it failed inside its replica's process."""

    attempt: int
    time: str
    reason: str
    """`unknown` where this program cannot read the event."""
    status: int
    excluded: dict[str, dict[str, Any]]
    queued: QueueWait | None = None
    """Its wait before."""
    detail: str = ""
    """Of `internal`: what failed inside the replica's process, and where."""


class Explanation(msgspec.Struct, kw_only=True):
    """All that the log knows of one request."""

    request: str
    model: str
    attempts: list[AttemptExplanation]
    rejections: list[RejectionExplanation]
    uses: int = 1
    """How many requests had this id; the attempts are those of the last one that was routed."""
    unread: list[str] = []
    """A sentence for each of its attempts whose record this program cannot read."""

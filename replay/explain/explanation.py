"""The parts of an explanation: the keys of `contrail explain --json`, which never change their meaning.

Costs and blocks are in blocks, times in milliseconds. Times are those of the log's clock, but for durations that a
worker or a replica measured on its own. `after_ms` of a prefill job counts from when the log stored the request for it.
`None` stands for a fact that the log does not have.
"""

from __future__ import annotations

from typing import Any

import msgspec


class TimeEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The estimated times of one candidate."""

    tokens: int
    """Of the prompt, that it would have computed."""
    own_ms: float | None
    """The time to compute them; None where the policy does not use it, or the log does not have it."""
    outstanding_ms: float
    """The wait for prefills that the worker had …"""
    held_ms: float
    """… and for those that the router held to send there first, or that it computed for other replicas when it declined
    a request; with the wait for room for the prompt's blocks, and the load of the request's adapter."""
    decode_tokens: int
    """Tokens in the active blocks there."""
    reuse: int = 0
    """Doublings of the reuse of the talks that live there (`projections.folds.load_fold.reuse_of`), in sixteenths."""
    load_ms: float = 0.0
    """The time to load the blocks that it would have taken from slower tiers, as far as that was learned."""
    turnover: float = 0.0
    """The part of its cache that prompts of the last 20 minutes had filled, beyond that of others
    (`projections.policy.cost.excess_turnover`). 0 under rules before version 8."""


class TierLoading(msgspec.Struct, frozen=True, kw_only=True):
    """The learned time of loads from a slower tier."""

    tier: str
    ms: float
    """The time of a block."""
    slow: bool
    """True if computing a block takes no longer: blocks there were not counted, and the worker was to load none."""


class EstimateBasis(msgspec.Struct, frozen=True, kw_only=True):
    """The basis of a decision's estimates. Under `time` the cost of a candidate is this sum:

    own_weight * own_ms + (outstanding_ms + held_ms) + active_weight * decode_tokens * per_token_us / 1000
    + first_active_times * active_weight * talks * min(decode_tokens, first_active_tokens) * per_token_us / 1000
    + own_request_weight * own_ms * active_requests
    + reuse_weight * (reuse / 16) * prompt_tokens * per_token_us / 1000
    + delay_weight * talks * (2 * (outstanding_ms + held_ms + own_ms) + own_ms * active_requests)
    + load_ms * (1 + 2 * delay_weight * talks)
    + turnover_times * turnover * own_ms

    Each term is rounded down to a microsecond, the price of a block to a nanosecond. Under `session` the cost is the
    wait beyond session_wait_max_ms.
    """

    exact: bool
    """True if that gives every recorded cost to the microsecond; else there are no terms."""
    weights: dict[str, float]
    """The settings above by name; empty if not `exact`."""
    weights_known: bool
    """True if the log has them; else these are the defaults."""
    base_ms: float
    """A prefill was taken to last so long …"""
    per_token_us: float
    """… and so many microseconds for each token."""
    source: str
    """Of these two: `set`, `learned` by the replica, or `default`: it had yet to learn them."""
    talks: float = 0.0
    """The greatest `reuse` of all candidates as a share of 64 sixteenths, 1 at most: by this the workers were full of
    talks. 0 under rules before version 3."""
    first_active_times: float = 0.0
    """The price of a worker's first active tokens beside that of any, in times of active_weight. 0 without talks, under
    rules before version 7, and under `session`."""
    first_active_tokens: int = 0
    """The tokens of a worker's active blocks that count as first ones, in whole blocks; 0 with `first_active_times`."""
    turnover_times: float = 0.0
    """The price of a prefill where all of a cache was filled of late, and nothing of another one, in times of its
    duration. 0 where no candidate had more turnover than others, and under rules before version 8."""
    loading: list[TierLoading] = msgspec.field(default_factory=list)
    """Slower tiers of which the replica had learned a load time."""


class PassedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that comes before the chosen one in a session's order."""

    worker: str
    name: str
    wait_ms: float


class SessionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order of workers under `session`, by a hash of the session and the worker."""

    of: str
    """`session`: the client named one; `prefix`: requests with the same start of the prompt are one; `request`: the
    prompt is too short for that."""
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
    """A request with a prefill on the chosen worker that ended while this request was held for that worker."""

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
    """The worker that it went to in the end."""
    after_ms: int
    """The time from this request's sending to its own."""


class HoldExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The part that holding had in a decision."""

    held_ms: int | None
    """The time that this request was held; None if it was not."""
    by: list[PrefillWhileHeld]
    """Prefills of the chosen worker in that time, in the order of their ends."""
    beside: list[ConcurrentHold]
    """Requests held with it, in the order of sending; those placed before it make `held_ms` of the candidates."""


class QueueWait(msgspec.Struct, frozen=True, kw_only=True):
    """No worker had a place for it when it came, or the right one still computed other prompts."""

    time: str
    """When the log stored that."""
    why: str
    """Of `core.events.routing.WAITS_FOR`, `no_worker`, or `prefill`: it was held."""
    priority: int
    tenant: str
    depth: int
    """The number of requests that waited already."""
    waited_ms: int | None
    """Until it was routed or ended; None if the log does not tell."""


class PrefillHint(msgspec.Struct, frozen=True, kw_only=True):
    """The prefill worker that the router named to the chosen worker."""

    worker: str
    name: str
    tokens: int
    """Tokens of the prompt that it held."""
    text: str
    """The reason for this worker."""


class FetchExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The start of the prompt that the worker fetched from another one's host."""

    worker: str
    name: str
    tokens: int
    expected_ms: float
    text: str


class PrefillJobAttempt(msgspec.Struct, kw_only=True):
    """One prefill worker's try at a job."""

    attempt: int
    """The requester counts the workers that take the job, from 0; -1 for a worker that gave up without the prompt."""
    worker: str
    name: str
    started_seq: int | None = None
    """In the jobs stream."""
    started: str | None = None
    after_ms: int | None = None
    """When it started."""
    delivery: int | None = None
    """The number of deliveries by the queue; 0 if the requester offered it directly."""
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
    """True if its blocks were pulled."""


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
    """The worker that the blocks were pulled from."""
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
    """The facts that the log does not have, and why."""


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
    """`pulled`, or why the worker computed the prompt after all; empty if it requested no job."""
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
    """The outcome in words."""


class Freshness(msgspec.Struct, frozen=True, kw_only=True):
    """The age of the index's knowledge of one worker at the decision, by the log's clock."""

    stream: str | None
    """The kv stream that the worker writes to."""
    seq: int | None
    """Of the worker's newest message there that was folded."""
    age_ms: int | None
    """The time from its storing to the decision; None if it was not found near enough."""
    unseen: int
    """Messages of the worker that stood in the log then and were not folded yet."""
    unseen_ms: int | None
    """The time from the storing of the oldest of them to the decision."""
    load_age_ms: int | None
    """The time from the storing of the worker's newest load report to the decision."""


class WorkerInFlight(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a worker at the decision, by the replica's view."""

    requests: int
    blocks: int
    prefill_tokens: int | None
    """Queued or being computed; None if the state was not folded."""
    ahead: int | None
    """Of the requests: those that only this replica knew of, because its events were not in the log it had read; less
    than 0 where it knew of ends."""


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
    """Part of the cost under `time`, in milliseconds: how long prefills there would hold it up …"""
    reuse_cost: float = 0.0
    """… the price of the talks that live there …"""
    delay_cost: float = 0.0
    """… that of delays among talks …"""
    load_cost: float = 0.0
    """… that of loads from slower tiers …"""
    turnover_cost: float = 0.0
    """… and that of what it pushes out of the cache."""
    timed: TimeEstimate | None = None
    """The estimates, of policies that estimate; under `time` the eight costs add up to `cost` to the microsecond, or
    are 0 where the log does not have the weights."""
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
    """The next best candidate, and the changes that would have made it win."""

    worker: str
    name: str
    cost_more: float
    """In blocks, or milliseconds; negative if it was cheaper."""
    needs: list[RequiredChange]
    text: str


class FirstTokenPhases(msgspec.Struct, frozen=True, kw_only=True):
    """The time to the first token, taken apart as far as the log knows."""

    ttft_ms: int
    """From the arrival; of an attempt that goes on with an answer, from when the one before it broke off."""
    before_ms: int
    """From then to this decision: its wait for a free place, and attempts before it. (Tokenizing comes before the
    arrival.)"""
    behind_ms: int
    """From there until those that were to be prefilled before it on the same worker had their first tokens."""
    behind_requests: int
    behind_tokens: int
    """Tokens that these were expected to compute when they were routed."""
    rest_ms: int
    """The remaining time: its own prefill, and the way there and back."""
    overlapped: bool
    """True if a request before it had its first token later than this one: then the phases cannot be separated."""
    near_requests: int = 0
    """Requests that the log has behind it, sent to the same worker within `near_ms` of it: they may have come first."""
    near_tokens: int = 0
    """Tokens that these were expected to compute."""
    near_ms: int = 0


class ConcurrentPrefill(msgspec.Struct, frozen=True, kw_only=True):
    """Another prompt that the worker had to compute at the same time."""

    request: str
    tokens: int
    """That it was expected to compute."""
    certain: bool
    """True if the engine certainly computed both at once; else it had both, in an order that no record tells."""


class AnswerDelay(msgspec.Struct, frozen=True, kw_only=True):
    """The client took the answer late."""

    written_ms: int
    """From the last token until the client's system had the whole answer."""
    stalled_ms: int
    """The time in all for which the client's system took nothing: the client did not read."""
    unsent_bytes: int
    """Bytes that waited for it when the last token came."""


class CachePrediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted against real reuse, and the event that was missing or late."""

    predicted_blocks: int
    real_blocks: int
    verdict: str
    """`as_predicted`, `removed_unseen`, `removed_later`, `cleared`, `ended`, `stored_unseen`, `stored_later`,
    `pending`, `unknown_cache`, `never_in_log`, `believed` (under `approximate`, or of an assumed cache),
    `no_first_token`, `real_unknown` (an engine that does not say it)."""
    first_block: int | None = None
    """The blocks of the prompt that made the difference, counted from 0 …"""
    blocks: int = 0
    stream: str | None = None
    seq: int | None = None
    """The sequence of the event that explains it."""
    after_decision_ms: int | None = None
    """When that was stored; negative if before the decision."""
    request: str | None = None
    """The request with the prefill that was counted on."""
    text: str


class AttemptExplanation(msgspec.Struct, kw_only=True):
    """One decision, its inputs, and its outcome."""

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
    """The replica's local knowledge: worker, as name and id, to reasons."""
    cursor: dict[str, int]
    digest: str
    predicted_cached_tokens: int
    why: str
    runner_up: RunnerUp | None
    draw: float | None
    """The position of the draw in [0, 1), where one decided."""
    again: str
    """`same` if the decision was made again from the log with this result, `differs`, or `not_made` where that would
    take long or cannot be."""
    estimates: EstimateBasis | None = None
    """By what it was estimated how long candidates take, by policies that do."""
    session: SessionOrder | None = None
    """The order of workers, under `session`."""
    session_key: str = ""
    """The keyed hash of the session that the client named; empty if it named none."""
    session_parent: str = ""
    """That of the session which began it, such as a sub-agent's parent."""
    adapter: str = ""
    """The id of the adapter that it is for; empty if it is for the model itself."""
    loads_adapter: bool | None = None
    """True if the worker had to load it first, which `held_ms` of candidates counts; None if that is not known."""
    drawn_two: list[str] = msgspec.field(default_factory=list)
    """The two workers that `power-of-two` drew, the first one first; empty if the record does not tell."""
    hold: HoldExplanation | None = None
    """The part that holding in the router had in it, if any."""
    doubts: list[str]
    """Why the log may not show all that the decision stood on."""
    queued: QueueWait | None = None
    """Its wait for a worker with a free place, if there was one."""
    told_tokens: int = 0
    """Tokens of the answer that the client had already, from earlier attempts that broke off."""
    compared: bool = False
    """The answer was made again from its start, and these tokens compared; else they stand at the prompt's end."""
    real_cached_tokens: int | None = None
    decided_after_ms: int = 0
    """From the request's arrival to this decision, by its replica's clock."""
    ttft_ms: int | None = None
    """From the request's arrival to this attempt's first token."""
    first_token_ms: int | None = None
    """The same to the request's first token, which an earlier attempt may have made …"""
    pause_ms: int | None = None
    """… and then the time from when the attempt before this one broke off to this one's first token."""
    phases: FirstTokenPhases | None = None
    concurrent: list[ConcurrentPrefill] = []
    """Prompts that the worker had to compute beside this one; none without stages."""
    delay: AnswerDelay | None = None
    """Set if the client took the answer late."""
    log_late_ms: int = 0
    """The time from the decision until the log stored it: the log was away, or slow."""
    reuse: CachePrediction | None = None
    hint: PrefillHint | None = None
    """The prefill worker that the decision preferred."""
    fetch: FetchExplanation | None = None
    """None if all that its cache lacked was to be computed."""
    prefill: PrefillOutcome | None = None
    """The place where the prompt was computed; None without prefill workers, or if no token came."""
    job: PrefillJobTrace | None = None
    """The prefill job that the worker requested."""
    outcome: str | None = None
    output_tokens: int | None = None
    duration_ms: int | None = None
    detail: str = ""


class CoursePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a request's time, in milliseconds from its arrival at the router; below 0 before it."""

    kind: str
    """A stage of `core.events.request_stages.RequestStages`; or `unanswered`: an attempt without a token; `between` two
    attempts; `written`: a late client gets the rest; `pause`: the client gets nothing, until another attempt goes on
    with the answer."""
    attempt: int
    worker: str
    """The worker of that attempt."""
    from_ms: float
    to_ms: float
    recorded: bool = False
    """True of a stage in the record of the attempt's end; else the part is as long as the log proves."""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """The course of a request over all its attempts."""

    parts: list[CoursePart]
    """One behind the other, without a gap. They add up to the client's time where stages are recorded, else to the time
    that the router had the request."""
    expected: list[CoursePart]
    """The router's estimates at its decisions, `behind` and `prefill`; none of policies that do not estimate."""
    pauses: list[CoursePart]
    ended: bool
    """False if it was under way when the log ends."""


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
    summary: list[str] = []
    """A few sentences, of which the first names what took longest; none where the log tells nothing of its course."""
    attempts: list[AttemptExplanation]
    rejections: list[RejectionExplanation]
    uses: int = 1
    """The number of requests with this id; the attempts are those of the last one that was routed."""
    unread: list[str] = []
    """A sentence for each of its attempts with a record that this program cannot read."""
    course: Course | None = None
    """The time of the request part by part; None where the log lacks its first attempt."""

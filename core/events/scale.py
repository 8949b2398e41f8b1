"""Events of the planner (stream scale): rolled demand, learned capacity, and the sizes of the fleet that it decides.

1. One planner writes at a time. A successor folds this stream and goes on behind its last message.
2. Times are whole milliseconds of the broker's clock, rates thousandths of a request per second, and shares
   hundredths of a percent (`_bp`). Every number is an integer.
3. A `ScaleDecided` rests on events of this stream alone, and on the numbers that it holds itself.
4. Where the planner sizes several models, each event names its model, for clients. The events of one period are one
   message, so the devices that models share are divided within a message.
5. Where prefill workers of a model are sized beside its decode workers, each event on these names their role. The
   demand of both is one event.
"""

from __future__ import annotations

from typing import Any, TypeVar, get_args

import msgspec
from msgspec import UNSET, UnsetType

from core.events.base import EventBase
from core.events.kv import DECODE

SCALE_VERSION = 6
"""Version of the rules by which this program sizes a fleet."""
JUDGE_VERSION = 4
"""Version of the simulations that judge a number of workers (`replay.simulate.scale_judge`)."""
NO_MODEL = ""
"""Of the events of a planner that sizes one model: they name none."""


PROFILE, LEARNED, MEASURED = ORIGINS = "profile", "learned", "measured"
"""Origin of a capacity: the settings of a simulated engine, the ends of requests, or a measurement of the engine."""


class DemandCell(msgspec.Struct, frozen=True, array_like=True):
    """Served requests of one class (`projections.scaling.request_demand.size_classes`): they are of like size. Sums
    keep the means, and these lie in the class."""

    count: int
    uncached_tokens: int
    """Prompt tokens that an engine computed …"""
    output_tokens: int
    """… and tokens of the answers."""
    prompt_tokens: int


class PrefillDemand(msgspec.Struct, frozen=True, array_like=True):
    """The part of a period's demand that is on prefill workers. A prompt is theirs if its decode worker lacked so much
    of it that a transfer pays, also where that worker computed it after all."""

    waiting: int
    """Requests that came before the period, have a worker, lack enough of their prompt there to pay a transfer, and
    have no first token yet."""
    pulled: int
    """Prompts whose blocks came from a prefill worker in the period …"""
    transfer_ms: int
    """… and the sum of the times from the prefill worker's answer to the first token."""
    cells: tuple[DemandCell, ...]
    """As those of `DemandRolled`, and of the same requests. Prompts of prefill workers have the tokens that these
    computed, and one token of an answer. All other requests are one cell without tokens."""


class DemandRolled(EventBase, frozen=True):
    """Demand of one period. An arrival is one request id: its queueing, retries and migrations add nothing."""

    at_ms: int
    """The end of the period."""
    period_s: int
    arrivals: int
    """Requests that came, those that were queued, held or refused included."""
    queued: int
    """Of these, requests that waited in a router …"""
    refused: int
    """… and requests without any worker in the end."""
    waiting: int
    """Requests that came and have no worker yet, at the period's end …"""
    running: int
    """… and those that a worker serves."""
    ended: int
    """Requests that were served or failed in the period …"""
    attained: int
    """… and those of them within the bounds of service."""
    first_token_ms: int
    """Sum over the served ones: time to first token …"""
    between_tokens_us: int
    """… and mean time per further token."""
    cells: tuple[DemandCell, ...]
    """Requests that were served since the last event with cells. Empty of most periods: see `SIZES_EVERY_MS` of
    `projections.scaling.request_demand`."""
    cursor: dict[str, tuple[int, int]]
    """Per stream: epoch and last sequence counted. The next period goes on there."""
    since: int | UnsetType = UNSET
    """First message of the routing stream that this count rests on, where the count began anew: another planner took
    over, or the stream was made anew. Requests between it and the cursor before are known, and belong to earlier
    periods. Left out where the count goes on, and where it began with the stream."""
    model: str | UnsetType = UNSET
    """Left out where the planner sizes one model."""
    prefill_demand: PrefillDemand | UnsetType = UNSET
    """Left out where no prefill workers are sized. With it, `running` counts requests with a first token, and in
    `cells` decode workers compute no prompt of a prefill worker."""


class HitRate(msgspec.Struct, frozen=True, array_like=True):
    """Share of prompt tokens that engines took from their caches, while so many workers served."""

    workers: int
    share_bp: int
    prompt_tokens: int
    """Tokens that the share rests on; older ones count less."""


class CapacityLearned(EventBase, frozen=True):
    """Speed of one worker, and the time that a worker takes to start. One that stays is stated again from time to time,
    with the time at which it was learned."""

    at_ms: int
    pass_tokens: int
    """Prompt tokens that one pass of the engine computes at most."""
    prefill_tokens: tuple[int, ...]
    """Prompt tokens of a pass, rising …"""
    prefill_us: tuple[int, ...]
    """… and the duration of such a pass; between two points it lies on their line."""
    decode_tokens: tuple[int, ...]
    """Tokens in the engine's cache that decoding requests hold, rising …"""
    decode_us: tuple[int, ...]
    """… and the duration of a decode step then."""
    room_tokens: int
    """Tokens that the engine's cache holds."""
    startup_ms: int
    """The 95th percentile of observed starts; the setting until there was one."""
    starts: int
    """Observed starts of which it is taken."""
    hits: tuple[HitRate, ...]
    """By number of workers, rising."""
    slots: int = 0
    """Requests that the engine runs at once; 0 if that is unknown."""
    devices: int = 1
    """Of one worker."""
    origin: str = PROFILE
    """Origin of the durations of passes."""
    decode_requests: tuple[int, ...] | UnsetType = UNSET
    """Requests of a decode step, rising from 1. With it, `decode_tokens` are those of each request …"""
    decode_rows_us: tuple[tuple[int, ...], ...] | UnsetType = UNSET
    """… and there is a row of durations over them for each number of requests, of which `decode_us` is the first. Left
    out where the durations depend on the tokens of all requests alone."""
    profile: str | UnsetType = UNSET
    """Digest of the measured profile with which the planner began. Left out where there was none."""
    model: str | UnsetType = UNSET
    """Left out where the planner sizes one model."""
    role: str | UnsetType = UNSET
    """PREFILL; left out of events on decode workers."""
    transfer_us: int | UnsetType = UNSET
    """Of a prefill worker: time from its answer to the first token of a request, the median of its periods; left out
    until one is known."""


class WorkerStarting(EventBase, frozen=True):
    """A worker was ordered and is not ready yet."""

    at_ms: int
    start: int
    """Number of the order, from 1."""
    model: str | UnsetType = UNSET
    """Left out where the planner sizes one model."""
    role: str | UnsetType = UNSET
    """PREFILL; left out of events on decode workers."""


class ScaleCandidate(msgspec.Struct, frozen=True, array_like=True):
    """One number of workers at one rate, with its prediction. A number may stand twice: a smaller fleet must also bear
    a somewhat higher rate."""

    workers: int
    rate_m: int
    """Arrivals a second in thousandths, for which the prediction is."""
    attainment_bp: int
    """Requests within both bounds of service …"""
    first_token_bp: int
    """… within that of the first token …"""
    between_tokens_bp: int
    """… and within that of the time between tokens."""
    prefill_bp: int
    """Share of time in which a worker computes prompts."""
    step_us: int
    """Duration of a decode step."""
    resident_tokens: int
    """Tokens that decoding requests hold in a worker's cache: those of the expected ones, or of those that run now if
    these hold more."""
    eased_bp: int | None = None
    """Requests within eased bounds (`projections.scaling.queue_model`). None where the goal is within reach, and by
    rules before version 6."""


class ScaleForecast(msgspec.Struct, frozen=True, kw_only=True):
    """Output of a forecaster: a recorded input of the decision."""

    predictor: str
    rate_m: int
    """Expected arrivals at the horizon …"""
    upper_m: int
    """… and the rate that `quantile` percent of the recent errors stay below."""
    quantile: int
    horizon_s: int


LATE, KILLED, WRONG = ABSENCES = "late", "killed", "wrong"
"""Reasons of a judge's absence: it was killed, since it did not answer in its time; its process ended; or its answer
was none to its question."""


class JudgedWorkers(msgspec.Struct, frozen=True, array_like=True):
    """One number of workers, simulated."""

    workers: int
    attainment_bp: int
    """Simulated requests within both bounds of service."""
    cached_bp: int
    """Share of their prompt tokens that came from caches."""


class ScaleJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """Simulations of some numbers of workers over the demand of an earlier decision: a recorded input."""

    asked_ms: int
    """Time of the decision …"""
    rate_m: int
    """… and its demand: arrivals a second in thousandths."""
    workers: tuple[JudgedWorkers, ...]
    """Rising in the number of workers; empty if there is no answer …"""
    digest: str
    """… and so is the digest of all runs."""
    absent: str
    """Reason why there is no answer, of ABSENCES; else empty."""
    version: int
    """JUDGE_VERSION of the program that simulated."""


class ScaleDecided(EventBase, frozen=True):
    """The planner has chosen a number of workers."""

    at_ms: int
    periods: int
    """DemandRolled events of this stream up to here; the decision rests on the newest of them."""
    rate_m: int
    """Arrivals over the last minute …"""
    burst_m: int
    """… and over the last moments, where they are a burst; else 0."""
    forecast: ScaleForecast
    ready: int
    starting: int
    """Workers that were ordered, and may still come in time …"""
    overdue: int
    """… and those that should have come long ago: they count for nothing."""
    draining: int
    candidates: tuple[ScaleCandidate, ...]
    ceiling_bp: int
    """Attainment of a fleet without any wait."""
    goal_bp: int
    """The attainment that was sought: that of the settings, or a little below the ceiling. Up to two percent less where
    earlier requests attained more than was asked. Below the ceiling, that of the settings was sought by eased
    bounds, too."""
    required: int
    """The fewest workers that reach it; if they are fewer than the last target, those that also reach it at a somewhat
    higher rate."""
    target: int
    """The number of workers from here on."""
    bound: str
    """Reason of the target: `projections.scaling.scale_decision.BOUNDS`."""
    revision: int
    """Of the settings."""
    version: int = SCALE_VERSION
    model: str | UnsetType = UNSET
    """Left out where the planner sizes one model."""
    budget: int | UnsetType = UNSET
    """Devices that the models of this message's decisions share. Left out where nothing bounds them together …"""
    sought: int | UnsetType = UNSET
    """… and then the target without that bound, too."""
    role: str | UnsetType = UNSET
    """PREFILL; left out of events on decode workers."""
    judged: ScaleJudgement | UnsetType = UNSET
    """The judge's answer or absence since the decision before. Left out where there is none. An answer counts for
    later decisions, too (`projections.scaling.scale_decision.fewest_judged`)."""

    @property
    def is_eased(self) -> bool:
        """The goal is out of reach, so predictions by eased bounds count, too."""
        return any(each.eased_bp is not None for each in self.candidates)


class ScaleApplied(EventBase, frozen=True):
    """A decision was carried out: workers were ordered, or began to drain."""

    at_ms: int
    target: int
    """With `decision`, the workers that the hand has now."""
    started: int
    """Workers that were ordered since the last event of this kind …"""
    drained: int
    """… and those that were to drain."""
    decision: int | UnsetType = UNSET
    """Sequence of the decision's message, where a hand acknowledged it. Left out where the planner itself carries its
    decisions out, in a simulation."""
    model: str | UnsetType = UNSET
    """Left out where the planner sizes one model."""
    role: str | UnsetType = UNSET
    """PREFILL; left out of events on decode workers."""


class ScaleFailed(EventBase, frozen=True):
    """A start or a drain did not come about."""

    at_ms: int
    reason: str
    start: int = 0
    """Number of the order; 0 if it is none's."""
    decision: int | UnsetType = UNSET
    """Sequence of the message of the decision that a hand could not carry out. Left out where no hand said so."""
    model: str | UnsetType = UNSET
    """Left out where the planner sizes one model."""
    role: str | UnsetType = UNSET
    """PREFILL; left out of events on decode workers."""


class ScaleSettingsChanged(EventBase, frozen=True):
    """From here on the planner decides under these settings. Those that stay are stated again from time to time, with
    the same revision."""

    revision: int
    settings: dict[str, Any]
    model: str | UnsetType = UNSET
    """Left out where the planner sizes one model."""
    role: str | UnsetType = UNSET
    """PREFILL; left out of events on decode workers."""


ScaleEvent = (
    DemandRolled | CapacityLearned | WorkerStarting | ScaleDecided | ScaleApplied | ScaleFailed | ScaleSettingsChanged
)
ScaleT = TypeVar("ScaleT", bound=ScaleEvent)
SCALE_EVENTS: tuple[type[ScaleEvent], ...] = get_args(ScaleEvent)


def model_of(event: ScaleEvent) -> str:
    """The model that the event is on; NO_MODEL of a planner that sizes one."""
    return event.model if isinstance(event.model, str) else NO_MODEL


def role_of(event: ScaleEvent) -> str:
    """The role of the workers that the event is on. A DemandRolled is on those of both roles, and names DECODE."""
    return DECODE if isinstance(event, DemandRolled) or event.role is UNSET else event.role


_MARK = "\x00"
"""Between a model and the role of its workers; no model's name has it."""


def fleet_of(event: ScaleEvent) -> str:
    """The key of the fleet that the event is on: that of `fleet_key`."""
    return fleet_key(model_of(event), role_of(event))


def fleet_key(model: str, role: str) -> str:
    """The key of a model's workers of one role. That of decode workers is the model itself."""
    return model if role == DECODE else f"{model}{_MARK}{role}"


def model_and_role(fleet: str) -> tuple[str, str]:
    """The model and the role of the fleet with that key."""
    model, _, role = fleet.partition(_MARK)
    return model, role or DECODE


def on_fleet(event: ScaleT, fleet: str) -> ScaleT:
    """The event with the names of that fleet; the decode workers of the only model have none. A DemandRolled has no
    role."""
    model, role = model_and_role(fleet)
    named = msgspec.structs.replace(event, model=model or UNSET)
    return named if role == DECODE else msgspec.structs.replace(named, role=role)


def prefill_part(event: DemandRolled) -> DemandRolled | None:
    """The demand as it is on prefill workers; None if none are sized. Its arrivals are those of all requests, and so
    are its cells: requests whose prompt a decode worker computes have no tokens there."""
    found = event.prefill_demand
    if isinstance(found, UnsetType):
        return None
    return msgspec.structs.replace(event, waiting=event.waiting + found.waiting, running=0, cells=found.cells)

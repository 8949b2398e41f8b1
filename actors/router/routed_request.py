"""RoutedRequest: everything about one request in progress, over all its attempts."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from core.errors import CallerError
from core.events import RequestFinished, RequestMigrated, RequestPrefilled, RequestRouted
from core.events.request_stages import UNREPORTED, US_PER_TENTH
from core.events.routing import CACHED_UNKNOWN, PROGRESS_VERSION
from core.generation import GenerateRequest, IntakeTimes, Output
from core.ids import RequestId, WorkerId
from core.models import GenerationFailed, NoWorkers
from core.prompt import Prompt
from projections.policy.prefill_time import PrefillTime
from projections.policy.view import RouteRequest

ATTEMPTS_MAX = 3
"""Workers in a row that a request is tried on before its first token."""
BEGUN_ATTEMPTS_MAX = 5
"""Workers in a row, the one that broke off first included, without a new token of an answer that was begun: more than
before the first token, because its client loses more."""
LEAVING_MAX = 8
"""Workers in a row, without a new token, that left in good order: these were not harmed, and cost next to no time."""
LOST_MAX = 32
"""Workers that one answer may lose in all. It bounds an answer that ends an engine every few tokens."""
US_PER_MS = 1000
_HALF_TENTH_US = US_PER_TENTH // 2
_NO_INTAKE = IntakeTimes(0, 0, 0)


class RetryBudget(msgspec.Struct):
    """Bounds the attempts of one request, so that one request cannot end a fleet."""

    _delivered: int = 0
    _broken: int = 0
    _leaving: int = 0
    """Attempts of each kind in a row, since the client got a token."""
    _lost: int = 0

    def __repr__(self) -> str:
        return f"<RetryBudget {self._broken} broken off and {self._leaving} left in a row, {self._lost} lost in all>"

    def spend(self, delivered: int, why: str, *, leaving: bool = False, repeating: bool = False) -> None:
        """An attempt broke off when the client had so many tokens; returns if the request may be tried again.

        `leaving` if its worker ends in good order; `repeating` if it was making tokens again that another one had made
        without harm. NoWorkers if the client has no token, GenerationFailed if it has some.
        """
        if delivered > self._delivered:
            self._delivered, self._broken, self._leaving = delivered, 0, 0
        self._leaving += leaving and not repeating
        self._broken += not leaving and not repeating
        self._lost += delivered > 0 and (repeating or not leaving)
        in_row, broken_max = self._broken + self._leaving, BEGUN_ATTEMPTS_MAX if delivered else ATTEMPTS_MAX
        if self._lost > LOST_MAX:
            raise GenerationFailed(f"more than {LOST_MAX} workers broke off, the last one: {why}")
        if self._broken < broken_max and self._leaving < LEAVING_MAX:
            return
        if delivered:
            raise GenerationFailed(f"{in_row} workers broke off, the last one: {why}")
        raise NoWorkers(f"{in_row} workers failed before the first token")


class Answer(Protocol):
    """One request's answer as far as it was delivered: tokens in a live replica, counts in a simulation."""

    passthrough: bool
    """True if all tokens of the present attempt are new."""

    @property
    def delivered(self) -> int:
        """Tokens that the client has."""

    @property
    def complete(self) -> bool:
        """True if the answer is as long as it may be, and only its end was not delivered."""

    @property
    def repeating(self) -> bool:
        """True while the present attempt has made some delivered tokens again, and not all of them."""

    def payload(self, deadline_ms: int | None) -> GenerateRequest:
        """The request that the next attempt sends to its worker. Called once for each attempt."""

    def prompt(self, payload: GenerateRequest) -> Prompt:
        """The prompt of that attempt, as a decision sees it."""

    def keep(self, output: Output) -> None:
        """The new tokens of an attempt that passes through are part of the answer."""

    def accept(self, output: Output) -> Output | None:
        """The output as the client gets it; None if nothing in it is new. GenerationFailed if it cannot continue the
        answer."""


class Phase(enum.Enum):
    """Phase of a request. In each phase, exactly one structure of the scheduler has it."""

    QUEUED = enum.auto()
    """In the queue of its model: no worker has a free slot."""
    READY = enum.auto()
    """It has a slot, and the next Tick begins its next attempt."""
    HELD = enum.auto()
    """It waits for the worker that is best for it."""
    WAITING = enum.auto()
    """An answer that was begun waits for a worker to continue it."""
    RUNNING = enum.auto()
    """An attempt is under way at a worker."""
    ENDED = enum.auto()


class RoutedRequest(msgspec.Struct, eq=False, kw_only=True):
    """Owned by the scheduler from its arrival to its end."""

    id: RequestId
    model: str
    prompt_tokens: int
    answer_max: int
    """Tokens that its answer may have; 0 for a task that generates none."""
    answer: Answer
    tenant: str = ""
    priority: int = 0
    session: str = ""
    session_parent: str = ""
    deadline_ms: int | None = None
    """Time that the client waits, from the arrival."""
    may_fetch: bool = True
    """False if another program sends it to its worker: that one cannot say where blocks are fetched."""

    phase: Phase = Phase.READY
    arrived_us: int = 0
    slot_since_us: int = -1
    """Time at which it got its slot; -1 while it has none."""
    is_admitted: bool = False
    """The queue gave it a slot, and no attempt has begun yet."""
    is_announced: bool = False
    """The log has its RequestQueued."""
    held_since_us: int = -1
    """Time at which it was held first; -1 if it never was."""
    intake: IntakeTimes | None = None
    """Its time in the front end, before the arrival."""
    ended_us: int = -1
    """End of the attempt before the present one; -1 for the first."""
    hold_began_us: int = -1
    """Time at which it was held for the present attempt; -1 if it was not."""
    queue_us: int = 0
    """Time of the present attempt in the queue …"""
    hold_us: int = 0
    """… held …"""
    route_us: int = 0
    """… and the rest until it was sent."""
    elsewhere_us: int = 0
    """Time in which another worker was to compute the present attempt's prompt."""
    engine_us: tuple[int, int] | None = None
    """`Output.engine_us` of the present attempt."""
    resume_until_us: int = 0
    """Time until which it waits for a worker if there is none."""

    attempt: int = 0
    """Number of the present attempt, or of the next one."""
    declined: int = 0
    """Attempts in a row, from the first, that a worker declined."""
    retries: RetryBudget = msgspec.field(default_factory=RetryBudget)
    payload: GenerateRequest | None = None
    asked: RouteRequest | None = None
    """The input of the next attempt's decision; None before it is prepared and once the attempt runs."""
    routed: RequestRouted | None = None
    """The decision of the present attempt; None if none is under way."""
    sent_us: int = 0
    first_token_us: int = -1
    """Time of the present attempt's first token; -1 until then."""
    cached_tokens: int = 0
    attempt_tokens: int = 0
    flowing: bool = False
    """Middle outputs of the present attempt pass to the client without a step of the scheduler."""
    previous_worker: WorkerId | None = None
    """The worker that broke off last; `failure` is the reason."""
    failure: str = ""
    outcome: str = ""
    """The reason for which it was turned away or refused; else empty."""

    def __repr__(self) -> str:
        at = f" on {self.routed.worker}" if self.routed is not None else ""
        return (
            f"<RoutedRequest {self.id} {self.model} {self.phase.name} attempt {self.attempt}{at}, "
            f"{self.answer.delivered} tokens, {self.declined} declined>"
        )

    @property
    def worker(self) -> WorkerId:
        """The worker of the attempt under way."""
        assert self.routed is not None
        return WorkerId(self.routed.worker)

    def prepare(self, now_us: int, resume_wait_us: int, time: PrefillTime | None) -> None:
        """The next attempt has its payload and the input of its decision, with the learned prefill time. A begun answer
        waits `resume_wait_us` at most for a worker."""
        left_ms = None
        if self.deadline_ms is not None:
            left_ms = max(1, self.deadline_ms - (now_us - self.arrived_us) // 1000)
        self.resume_until_us = now_us + resume_wait_us if self.answer.delivered else 0
        self.payload = self.answer.payload(left_ms)
        self.asked = RouteRequest(
            self.id, self.attempt, self.model, self.answer.prompt(self.payload), self.tenant, self.priority,
            self.session, time, session_parent=self.session_parent, adapter=self.payload.adapter or "",
        )  # fmt: skip

    def start(self, routed: RequestRouted, now_us: int) -> None:
        """The attempt is under way."""
        self.phase, self.routed, self.asked, self.sent_us = Phase.RUNNING, routed, None, now_us
        self.first_token_us, self.cached_tokens, self.attempt_tokens, self.flowing = -1, 0, 0, False
        self.elsewhere_us, self.engine_us = 0, None
        since_us = self.ended_us
        if since_us < 0:
            since_us = self.arrived_us
            self.queue_us = max(0, self.slot_since_us - since_us)
        else:
            self.queue_us = 0
        self.hold_us = now_us - self.hold_began_us if self.hold_began_us >= 0 else 0
        self.route_us = now_us - since_us - self.queue_us - self.hold_us
        self.hold_began_us = -1

    def pass_on(self, output: Output) -> None:
        """New tokens of an attempt that flows go to the client."""
        self.attempt_tokens += len(output.tokens)
        self.answer.keep(output)

    def migration_event(self) -> RequestMigrated:
        """The present attempt continues an answer that was begun."""
        return RequestMigrated(
            request=self.id,
            attempt=self.attempt,
            worker=self.previous_worker or "",
            told_tokens=self.answer.delivered,
            reason=self.failure,
        )

    def prefilled_event(self, output: Output, at_us: int) -> RequestPrefilled:
        """The first token of the present attempt came. The publisher writes it in a version that all replicas read."""
        self.first_token_us = at_us
        self.cached_tokens = CACHED_UNKNOWN if output.cached_tokens is None else output.cached_tokens
        self.engine_us, report = output.engine_us, output.prefill
        if report is not None and report.job:
            self.elsewhere_us = US_PER_MS * (report.wait_ms + report.pull_ms)
        return RequestPrefilled(
            request=self.id,
            attempt=self.attempt,
            cached_tokens=self.cached_tokens,
            ttft_ms=self._since_arrival_ms(at_us),
            prefill=output.prefill,
            v=PROGRESS_VERSION,
        )

    def finished_event(self, outcome: str, at_us: int, detail: str) -> RequestFinished:
        """The present attempt has ended. The version is as above."""
        assert self.routed is not None
        stages = self._stages(at_us)
        self.ended_us = at_us
        return RequestFinished(
            request=self.id,
            attempt=self.attempt,
            outcome=outcome,
            prompt_tokens=self.routed.prompt_tokens,
            output_tokens=self.attempt_tokens,
            cached_tokens=self.cached_tokens,
            ttft_ms=self._since_arrival_ms(self.first_token_us) if self.first_token_us >= 0 else -1,
            duration_ms=self._since_arrival_ms(at_us),
            detail=detail,
            v=PROGRESS_VERSION,
            stages=stages,
        )

    def _stages(self, at_us: int) -> tuple[int, ...]:
        """The present attempt's `RequestStages`, up to now."""
        intake = self.intake if self.attempt == 0 and self.intake is not None else _NO_INTAKE
        before = (intake.loop_us, intake.body_us, intake.prepare_us, self.queue_us, self.hold_us, self.route_us)
        if self.first_token_us < 0:
            behind = (at_us - self.sent_us, 0, 0, 0, 0)
        else:
            left_us = self.first_token_us - self.sent_us
            elsewhere_us = min(left_us, self.elsewhere_us)
            left_us -= elsewhere_us
            decode_us = at_us - self.first_token_us
            if self.engine_us is None:
                behind = (0, elsewhere_us, UNREPORTED * US_PER_TENTH, left_us, decode_us)
            else:
                queued_us, computed_us = self.engine_us
                computed_us = min(left_us, computed_us)
                queued_us = min(left_us - computed_us, queued_us)
                behind = (left_us - computed_us - queued_us, elsewhere_us, queued_us, computed_us, decode_us)
        return tuple([(each + _HALF_TENTH_US) // US_PER_TENTH for each in before + behind])

    def client_error(self, error: NoWorkers | CallerError) -> Exception:
        """The error for the client. It is GenerationFailed if the client has tokens: then the request is neither at
        fault nor to be sent again."""
        if not self.answer.delivered:
            return error
        text = "the worker broke off, and" if isinstance(error, NoWorkers) else "the answer cannot be continued:"
        return GenerationFailed(f"{text} {error}")

    def _since_arrival_ms(self, at_us: int) -> int:
        return (at_us - self.arrived_us) // 1000

"""RoutedRequest: one request over all its attempts; Attempt: one of them, from its routing to its end.

A RetryBudget bounds how often a request is tried on another worker, so that one request cannot end a fleet. The
AttemptTable holds the attempts under way on this replica.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from actors.metrics.prefill_counts import PrefillCounts
from actors.router.answer_progress import AnswerProgress
from actors.transport.worker_connection import TokenStream, WorkerDeclined, WorkerDisconnected
from core.clock import Clock
from core.errors import CallerError
from core.events import Event, ReplicaRestated, RequestFinished, RequestMigrated, RequestPrefilled, RequestRouted
from core.generation import Output
from core.ids import RequestId, WorkerId, to_column
from core.models import GenerationFailed, NoWorkers
from projections.folds.routing_fold import in_flight
from projections.policy.cost import ESTIMATING_POLICIES
from projections.policy.prefill_time import PrefillTimeModel

ATTEMPTS_MAX = 3
"""Workers in a row that a request is tried on before its first token."""
BEGUN_ATTEMPTS_MAX = 5
"""Workers in a row, the one that broke off first included, without a new token of an answer that was begun: more than
before the first token, because its client loses more."""
LEAVING_MAX = 8
"""Workers in a row, without a new token, that left in good order: these were not harmed, and cost next to no time."""
LOST_MAX = 32
"""Workers that one answer may lose, whatever it got from each: one that ends its engine every few tokens is stopped."""


class RetryBudget:
    """How often one request may be tried on another worker."""

    def __init__(self) -> None:
        self._delivered = 0
        self._broken = 0
        self._leaving = 0
        """Of each kind, since the client got a token."""
        self._lost = 0

    def __repr__(self) -> str:
        return f"<RetryBudget {self._broken} broken off and {self._leaving} left in a row, {self._lost} lost in all>"

    def failed(self, told_tokens: int, why: str, *, leaving: bool = False, repeating: bool = False) -> None:
        """An attempt broke off when the client had so many tokens; returns if the request may be tried again.

        `leaving` if its worker ends in good order; `repeating` if it was making tokens again that another one had made
        without harm. NoWorkers if the client has no token, GenerationFailed if it has some.
        """
        if told_tokens > self._delivered:
            self._delivered, self._broken, self._leaving = told_tokens, 0, 0
        self._leaving += leaving and not repeating
        self._broken += not leaving and not repeating
        self._lost += told_tokens > 0 and (repeating or not leaving)
        in_row, broken_max = self._broken + self._leaving, BEGUN_ATTEMPTS_MAX if told_tokens else ATTEMPTS_MAX
        if self._lost > LOST_MAX:
            raise GenerationFailed(f"more than {LOST_MAX} workers broke off, the last one: {why}")
        if self._broken < broken_max and self._leaving < LEAVING_MAX:
            return
        if told_tokens:
            raise GenerationFailed(f"{in_row} workers broke off, the last one: {why}")
        raise NoWorkers(f"{in_row} workers failed before the first token")


class RoutedRequest:
    """The state of one request that lasts from one attempt to the next."""

    __slots__ = (
        "arrived_ms",
        "attempt",
        "declined",
        "failure",
        "held_ms",
        "left_unstarted",
        "model",
        "previous_worker",
        "progress",
        "retries",
    )

    def __init__(self, model: str, progress: AnswerProgress, arrived_ms: int) -> None:
        self.model = model
        self.progress = progress
        self.retries: RetryBudget | None = None
        """There once an attempt broke off."""
        self.arrived_ms = arrived_ms
        self.attempt = 0
        """The present one, or the next."""
        self.declined = 0
        """Attempts in a row, from the first, that a worker declined."""
        self.held_ms: int | None = None
        """Since when it is held, by the clock of `now_ms`; None if it never was."""
        self.previous_worker = WorkerId("")
        """The worker that broke off last, and why."""
        self.failure = ""
        self.left_unstarted = False
        """It left in good order and made nothing."""

    def __repr__(self) -> str:
        return f"<RoutedRequest attempt {self.attempt}, {self.progress!r}>"

    def migration_event(self, request: str) -> RequestMigrated:
        """The present attempt goes on with an answer that was begun."""
        return RequestMigrated(
            request=request,
            attempt=self.attempt,
            worker=self.previous_worker,
            told_tokens=len(self.progress.tokens),
            reason=self.failure,
        )

    def raise_if_begun(self, error: NoWorkers | CallerError) -> None:
        """Returns if the client has no token yet and may hear this itself; GenerationFailed if it has: then it is
        neither its fault nor to be begun anew."""
        if self.progress.tokens:
            text = "the worker broke off, and" if isinstance(error, NoWorkers) else "the answer cannot be continued:"
            raise GenerationFailed(f"{text} {error}") from error


class AttemptTable:
    """Attempts under way on this replica; a restatement names them."""

    def __init__(self, publish: Callable[[Event], None], clock: Clock) -> None:
        self.publish = publish
        self.clock = clock
        self.open: dict[tuple[str, int], Attempt] = {}
        self.prefills = PrefillCounts()
        self.learned = PrefillTimeModel()
        self._names: set[RequestId] = set()
        """Requests from their arrival to their end, also while none of their attempts is under way."""

    def __repr__(self) -> str:
        return f"<AttemptTable {len(self.open)} under way>"

    def begin(self, id: RequestId) -> RequestId:
        """The id that the request goes by until its `end`: clients may send one twice at a time."""
        name = RequestId(f"{id}.{secrets.token_hex(4)}") if id in self._names else id
        self._names.add(name)
        return name

    def end(self, name: RequestId) -> None:
        """The request is over."""
        self._names.remove(name)

    def restated(self, reason: str) -> ReplicaRestated:
        """All of them as one event."""
        attempts = list(self.open.values())
        routed = [attempt.routed for attempt in attempts]
        return ReplicaRestated(
            requests=tuple(event.request for event in routed),
            attempts=tuple(event.attempt for event in routed),
            models=tuple(event.model for event in routed),
            workers=to_column([event.worker for event in routed]),
            blocks=tuple(event.blocks for event in routed),
            prefill_tokens=tuple(0 if f.ttft_ms >= 0 else f.routed.prefill_tokens for f in attempts),
            reason=reason,
            begins_us=tuple(0 if f.ttft_ms >= 0 else in_flight(f.routed).begins_us for f in attempts),
        )


class Attempt:
    """One attempt. Publishes RequestPrefilled with the first token and RequestFinished exactly once."""

    __slots__ = (
        "_answer",
        "_arrived_ms",
        "_cached_tokens",
        "_on_end",
        "_outcome",
        "_passthrough",
        "_sent_us",
        "_stream",
        "_table",
        "_take",
        "_tokens",
        "output_tokens",
        "routed",
        "ttft_ms",
        "worker",
    )  # fmt: skip
    _answer: AnswerProgress
    _tokens: list[int]
    _take: Callable[[Output], bool]
    _on_end: Callable[[], None]

    def __init__(self, routed: RequestRouted, stream: TokenStream, attempts: AttemptTable, arrived_ms: int) -> None:
        self.routed = routed
        self.worker = WorkerId(routed.worker)
        self.output_tokens = 0
        self.ttft_ms = -1
        self._cached_tokens = 0
        self._stream = stream
        self._table = attempts
        self._arrived_ms = arrived_ms
        self._sent_us = attempts.clock.monotonic_us()
        self._outcome = ""
        self._passthrough = False
        """Whether tokens came already, and are new and told as they come."""
        attempts.open[routed.request, routed.attempt] = self

    def __repr__(self) -> str:
        return f"<Attempt {self.routed.request}/{self.routed.attempt} on {self.worker}, {self.output_tokens} tokens>"

    async def run(self, progress: AnswerProgress, take: Callable[[Output], bool], on_end: Callable[[], None]) -> None:
        """Tokens have been told, and what is new of them was taken as the worker made them; `on_end` was called before
        the answer's end was. WorkerDisconnected, WorkerDeclined and CallerError as the stream has them,
        GenerationFailed as `progress` has it."""
        self._answer, self._tokens, self._take, self._on_end = progress, progress.tokens, take, on_end
        try:
            await self._stream.run(self._on_output)
        except WorkerDisconnected as error:
            self._finish("worker_lost", str(error))
            raise
        except WorkerDeclined as error:
            self._finish("declined", error.detail)
            raise
        except CallerError:
            self._finish("error", "the engine refused the request")
            raise

    def _on_output(self, output: Output) -> bool:
        tokens = output.tokens
        self.output_tokens += len(tokens)
        if self._passthrough and output.finish is None:  # every token passes here
            self._tokens.extend(tokens)
            return self._take(output)
        return self._on_checked_output(output)

    def _on_checked_output(self, output: Output) -> bool:
        """The same of the first and the last output, and of all where an attempt before this one was heard of."""
        if self.ttft_ms < 0 and (output.tokens or output.finish):
            self._on_first_output(output)
            self._passthrough = self._answer.passthrough
        if output.finish is not None:
            self._finish(output.finish)  # said before the client hears the end
        new = self._answer.accept(output)
        if output.finish is not None:
            self._on_end()
        return new is None or self._take(new)

    def close(self, outcome: str = "abort", detail: str = "") -> None:
        """The worker stops if it had not finished; the end is said if it was not. May be called again."""
        self._stream.close()
        self._finish(outcome, detail)

    def _elapsed_ms(self) -> int:
        return self._table.clock.monotonic_ms() - self._arrived_ms

    def _on_first_output(self, output: Output) -> None:
        routed = self.routed
        self.ttft_ms = self._elapsed_ms()
        self._cached_tokens = output.cached_tokens or 0
        if output.prefill is not None:
            self._table.prefills.note(routed.model, output.prefill)
        if (
            routed.policy in ESTIMATING_POLICIES
            and not routed.wait_us
            and not (output.prefill and output.prefill.remote)
        ):
            took_us = self._table.clock.monotonic_us() - self._sent_us
            self._table.learned.note(routed.model, routed.prompt_tokens - self._cached_tokens, took_us)
        self._table.publish(
            RequestPrefilled(
                request=routed.request,
                attempt=routed.attempt,
                cached_tokens=self._cached_tokens,
                ttft_ms=self.ttft_ms,
                prefill=output.prefill,
            )
        )

    def _finish(self, outcome: str, detail: str = "") -> None:
        if self._outcome:
            return
        self._outcome = outcome
        routed = self.routed
        del self._table.open[routed.request, routed.attempt]
        self._table.publish(
            RequestFinished(
                request=routed.request,
                attempt=routed.attempt,
                outcome=outcome,
                prompt_tokens=routed.prompt_tokens,
                output_tokens=self.output_tokens,
                cached_tokens=self._cached_tokens,
                ttft_ms=self.ttft_ms,
                duration_ms=self._elapsed_ms(),
                detail=detail,
            )
        )

"""Dispatch: one request from its arrival to the chosen worker, and the decision on its way to the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from actors.membership.failure_detector import FailureDetector
from actors.router.admission import Slot
from actors.router.answer_progress import AnswerProgress
from actors.router.capacity import ConnectedWorkers, has_prefill_workers
from actors.router.event_loop_throttle import EventLoopThrottle
from actors.router.fleet import Fleet
from actors.router.late_binding import LateBinding
from actors.router.routed_request import Attempt, AttemptTable, RetryBudget, RoutedRequest
from actors.router.routing_publisher import RoutingPublisher
from actors.transport.worker_connection import WorkerDeclined, WorkerDisconnected, WorkerLeaving
from core.clock import Clock
from core.entropy import random_bits64
from core.errors import CallerError, ContrailError
from core.events.kv import PREFILL
from core.failure import detail_of, failure_in, mark_in_log
from core.generation import GenerateRequest, Hint, Output, OutputConsumer
from core.ids import WorkerId
from core.keys import session_key
from core.models import GenerationFailed, NoWorkers, Overloaded, unknown_model
from core.prompt import Prompt, scope_bytes
from projections.folds.state import State
from projections.policy.binding_plan import LIGHT_TOKENS
from projections.policy.cost import ESTIMATING_POLICIES
from projections.policy.decide import Decision, decide, record, rejection
from projections.policy.prefill_time import PrefillTime
from projections.policy.view import RouteRequest, View
from streams.live_settings import LiveSettings

RESUME_WAIT_S = 5.0
"""How long an answer that was begun waits for a worker when there is none: one that dies alone is started again within
a second or two. A request of which no token came is refused at once."""
RESUME_RETRY_S = 0.1
"""Between decisions while it waits."""
DECLINED_MAX = 8
"""Workers in a row that may decline a request; then it goes where it costs least, busy or not."""
LOG_AWAY_S = 1.0
"""With a log that acknowledges nothing for so long other replicas' prompts are taken to be computed by now."""
ONLY_PREFILL = "has only prefill workers, which answer no requests: start a decode worker (`contrail worker`)"

_logger = logging.getLogger(__name__)


class Dispatch:
    """Decides, sends and publishes decisions; goes on with another worker when one breaks off."""

    def __init__(
        self,
        state: State,
        fleet: Fleet,
        failure_detector: FailureDetector,
        live_settings: LiveSettings,
        attempts: AttemptTable,
        clock: Clock,
        hash_seed: int,
        *,
        publisher: Callable[[], RoutingPublisher],
        decided: Callable[[str, float], None],
    ) -> None:
        """`decided` hears of each decision: the policy, and how many seconds it took."""
        self._state = state
        self._fleet = fleet
        self._failure_detector = failure_detector
        self._live_settings = live_settings
        self._attempts = attempts
        self._clock = clock
        self._hash_seed = hash_seed
        self._publisher = publisher
        self._decided = decided
        self.connected = ConnectedWorkers(state, fleet)
        self._wall_offset_ms = clock.wall_ms() - clock.monotonic_ms()
        self._throttle = EventLoopThrottle()
        self.late_binding = LateBinding(
            live_settings,
            clock,
            self.view,
            self._wall_ms,
            lambda event: publisher().publish(event),
            with_learned_time=self._with_learned_time,
            decided=decided,
        )

    def __repr__(self) -> str:
        return f"<Dispatch {self._attempts!r}>"

    def check_known(self, model: str) -> None:
        """UnknownModel if there was never a worker for it, NoWorkers if none is connected yet."""
        if model not in self._fleet.catalog:
            roles = {each.role for each in self._fleet.registered.values() if each.model == model}
            if roles == {PREFILL}:
                raise NoWorkers(f"the model {model!r} {ONLY_PREFILL}")
            if roles:
                raise NoWorkers(f"the workers of model {model!r} are not connected yet")
            raise unknown_model(model, self._fleet.catalog.all_names())

    async def run(
        self,
        model: str,
        request: GenerateRequest,
        consumer: OutputConsumer,
        arrived_ms: int,
        slot: Slot,
    ) -> None:
        """The answer has been taken, from the workers that the decisions chose; a cancellation cancels there.

        When it ends early, the log has the consumer's outcome, or `abort`. `arrived_ms` is when the request came. Its
        `slot` is closed before the last output is taken, and at the latest when this ends.
        `model` is one that is known. NoWorkers, Overloaded, or CallerError (the engine cannot take it) before the first
        token. After it GenerationFailed, if no other worker can go on with the answer.
        """
        routed_request = RoutedRequest(
            model, AnswerProgress(request, self._fleet.catalog.context_max(model)), arrived_ms
        )
        delivered = routed_request.progress.tokens
        try:
            while not routed_request.progress.complete:
                attempt = await self._start_attempt(routed_request, request)
                consumer.on_routed(self._worker_name(attempt.worker))
                try:
                    await attempt.run(routed_request.progress, consumer.on_output, lambda: slot.close(len(delivered)))
                    return  # noqa: TRY300  # the loop is over when an attempt ends well
                except WorkerDeclined as error:
                    self._on_declined(routed_request, attempt, error)
                except WorkerDisconnected as error:
                    self._on_worker_lost(routed_request, attempt, error)
                except GenerationFailed as error:
                    attempt.close("error", str(error))
                    raise
                except CallerError as error:
                    routed_request.raise_if_begun(error)
                    raise
                except (Exception, asyncio.CancelledError) as error:
                    self._on_failure(attempt, error)
                    raise
                finally:
                    attempt.close(consumer.outcome() or "abort")
            consumer.on_output(Output(finish="length"))
        finally:
            slot.close(len(delivered) if consumer.outcome() else None)

    def _on_failure(self, attempt: Attempt, error: BaseException) -> None:
        """Of a failure on our side, whether the consumer raised it or its client's task, the log has what it was
        and where; of other errors, and where there is none, nothing is said here."""
        inner = failure_in(error) if isinstance(error, asyncio.CancelledError) else error
        if isinstance(inner, Exception) and not isinstance(inner, ContrailError):
            attempt.close("error", detail_of(inner))
            mark_in_log(inner)

    def _on_declined(self, routed_request: RoutedRequest, attempt: Attempt, error: WorkerDeclined) -> None:
        """The request is to be held again, and what the worker computes for others counts there."""
        time = PrefillTime.of(self._live_settings.current, self._attempts.learned.time(routed_request.model))
        self.late_binding.on_declined(attempt.worker, error.tokens, time.us(error.tokens))
        routed_request.declined += 1
        routed_request.attempt += 1

    def _on_worker_lost(self, routed_request: RoutedRequest, attempt: Attempt, error: WorkerDisconnected) -> None:
        """The worker is left out for a while, and the next attempt may begin; GenerationFailed or NoWorkers if not."""
        self._fleet.failed(attempt.worker)
        _logger.warning("trying another worker: %s", error, extra={"request_id": attempt.routed.request})
        progress, leaving = routed_request.progress, isinstance(error, WorkerLeaving)
        if not progress.complete:
            routed_request.retries = routed_request.retries or RetryBudget()
            routed_request.retries.failed(
                len(progress.tokens), str(error), leaving=leaving, repeating=progress.repeating
            )
        routed_request.previous_worker, routed_request.failure = attempt.worker, str(error)
        routed_request.left_unstarted = leaving and not attempt.output_tokens
        routed_request.attempt += 1

    async def _start_attempt(self, routed_request: RoutedRequest, request: GenerateRequest) -> Attempt:
        """The next attempt is on its way. An answer that was begun waits for a worker, up to RESUME_WAIT_S."""
        progress, left_ms, until_ms = routed_request.progress, None, 0
        if progress.tokens or request.deadline_ms is not None:
            now_ms = self._clock.monotonic_ms()
            until_ms = now_ms + int(RESUME_WAIT_S * 1000) if progress.tokens else 0
            if request.deadline_ms is not None:
                left_ms = max(1, request.deadline_ms - (now_ms - routed_request.arrived_ms))
        payload = progress.payload(left_ms)
        scope = scope_bytes(request.adapter, request.cache_salt) if request.adapter or request.cache_salt else b""
        prompt = Prompt(payload.tokens, self._fleet.catalog.block_size(routed_request.model), self._hash_seed, scope)
        asked = RouteRequest(
            payload.id, routed_request.attempt, routed_request.model, prompt, request.tenant or "", request.priority,
            self._session_key(request, request.session) if request.session else "",
            session_parent=self._session_key(request, request.session_parent) if request.session_parent else "",
        )  # fmt: skip
        if routed_request.left_unstarted and progress.tokens:
            # the worker that refused it may be the only one until the log tells of others
            await asyncio.sleep(RESUME_RETRY_S)
        try:
            attempt = await self._bind_late(asked, payload, routed_request)
            while attempt is None:
                if asked.prompt.tokens > LIGHT_TOKENS:  # its decision and its record take milliseconds
                    await self._throttle.acquire()
                asked = self._with_learned_time(asked)
                decision = self._decide(asked)
                if decision.worker is not None:
                    attempt = self._send(asked, payload, decision, routed_request)
                elif self._clock.monotonic_ms() >= until_ms:
                    raise self._reject(asked, decision, 500 if progress.tokens else 503)
                else:
                    await asyncio.sleep(RESUME_RETRY_S)
        except (NoWorkers, CallerError) as error:
            routed_request.raise_if_begun(error)
            raise
        return attempt

    def _session_key(self, request: GenerateRequest, name: str) -> str:
        """Sessions of different tenants are different ones."""
        return session_key(f"{request.tenant or ''}/{name}", self._hash_seed)

    def _with_learned_time(self, asked: RouteRequest) -> RouteRequest:
        """With what this replica has learned by now, if that counts."""
        settings = self._live_settings.current
        if settings.policy not in ESTIMATING_POLICIES or settings.prefill_us_per_token_m:
            return asked
        return asked._replace(time=self._attempts.learned.time(asked.model))

    async def _bind_late(
        self, asked: RouteRequest, request: GenerateRequest, routed_request: RoutedRequest
    ) -> Attempt | None:
        """The first attempt, once its worker was free, where requests are held for that, and the like for the next if
        the worker declined, since others thought so too; else None."""
        if (
            routed_request.attempt != routed_request.declined
            or routed_request.declined == DECLINED_MAX
            or not self._may_hold(routed_request.model)
        ):
            return None
        routed_request.held_ms = self._wall_ms() if routed_request.held_ms is None else routed_request.held_ms

        def send(asked: RouteRequest, decision: Decision) -> Attempt:
            return self._send(asked, request, decision, routed_request, if_free=True)

        attempt = self.late_binding.bind_now(asked, send, routed_request.held_ms)
        if attempt is not None:
            return attempt
        workers = self.connected.of(asked.model)
        return await self.late_binding.hold(asked, send, routed_request.held_ms, workers, request.deadline_ms)

    def _may_hold(self, model: str) -> bool:
        """Whether one more request is to be held. Not where prompts of the model are computed elsewhere: there a worker
        is idle though no token came. Not while the log is away, either, and cannot tell what other replicas' requests
        keep workers busy."""
        if has_prefill_workers(self._state, model):
            return False
        alone = len(self._state.routing.replicas) <= 1
        return self.late_binding.enabled and (alone or self._publisher().outbox.away_s < LOG_AWAY_S)

    def view(self) -> View:
        """What a decision made now sees; what of it only we know is said in the log first."""
        publisher = self._publisher()
        local = self._fleet.local(self._state.workers(), self._failure_detector.suspected)
        publisher.publish_local(local)
        return View(self._state, publisher.id, publisher.ahead, local)

    def _decide(self, asked: RouteRequest) -> Decision:
        """Made now; nothing is said of it yet."""
        started_us = self._clock.monotonic_us()
        decision = decide(self.view(), asked, self._live_settings.current, self._wall_ms(), random_bits64())
        self._decided(self._live_settings.current.policy, (self._clock.monotonic_us() - started_us) / 1e6)
        return decision

    def _wall_ms(self) -> int:
        """What decisions go by: it never goes back."""
        return self._wall_offset_ms + self._clock.monotonic_us() // 1000

    def _send(
        self,
        asked: RouteRequest,
        request: GenerateRequest,
        decision: Decision,
        routed_request: RoutedRequest,
        *,
        if_free: bool = False,
    ) -> Attempt:
        """The request is on its way to the chosen worker, and the decision on its way to the log."""
        assert decision.worker is not None
        # the worker gets the request first: the record costs a digest per block
        hint = Hint(asked.attempt, decision.prefer, decision.prefer_tokens, decision.prefill_tokens, if_free)
        stream = self._fleet.links[decision.worker].open(asked.model, request, hint)
        try:
            event = record(decision, asked, self._live_settings.current, self._live_settings.revision)
            if routed_request.progress.tokens:
                self._publisher().publish(routed_request.migration_event(asked.id))
            self._publisher().publish(event)
        except BaseException:  # whatever it was, the worker would go on for nobody
            stream.close()
            raise
        return Attempt(event, stream, self._attempts, routed_request.arrived_ms)

    def _worker_name(self, worker: WorkerId) -> str:
        """The name that the worker gave itself; its id if the log has no name of it."""
        member = self._state.member(worker)
        return member.joined.name if member is not None and member.joined is not None else worker

    def _reject(self, asked: RouteRequest, decision: Decision, status: int) -> NoWorkers:
        reasons = {reason: len(ids) for reason, ids in decision.excluded.items() if reason != "other_model"}
        text = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in reasons.items())
        if not text and has_prefill_workers(self._state, asked.model):
            text = f"it {ONLY_PREFILL}"
        event = rejection(decision, asked, self._live_settings.revision, status)
        self._publisher().publish(event)
        kind = Overloaded if event.reason == "overloaded" else NoWorkers
        return kind(f"no worker can take requests for model {asked.model!r} now ({text or 'none is there'})")

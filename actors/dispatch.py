"""Dispatch: one request from its arrival to the worker that was chosen, and the decision on its way to the log."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import msgspec

from actors.fleet import Fleet
from actors.flight import ATTEMPTS_MAX, Flight, Flights
from actors.line import WorkerGone
from actors.live_settings import LiveSettings
from actors.suspicion import Suspicion
from actors.told import Told
from actors.voice import Voice
from core.clock import Clock
from core.events import RequestMigrated, RequestRejected
from core.generation import GenerateRequest, Hint, Output
from core.ids import RequestId
from core.models import GenerationFailed, NoWorkers, Overloaded, UnknownModel
from core.prompt import Prompt, scope_bytes
from core.roles import PREFILL
from projections.decide import Decision, decide, record, shown
from projections.state import State
from projections.view import RouteRequest, View

ONLY_PREFILL = "has only prefill workers, which answer no requests: start a decode worker (`contrail worker`)"

_logger = logging.getLogger(__name__)


class Dispatch:
    """Decides, sends, and says what it decided; tries other workers until a first token came."""

    def __init__(
        self,
        state: State,
        fleet: Fleet,
        suspicion: Suspicion,
        live: LiveSettings,
        flights: Flights,
        clock: Clock,
        hash_seed: int,
        *,
        voice: Callable[[], Voice],
        decided: Callable[[str, float], None],
    ) -> None:
        """`decided` hears of each decision: the policy, and how many seconds it took."""
        self._state = state
        self._fleet = fleet
        self._suspicion = suspicion
        self._live = live
        self._flights = flights
        self._clock = clock
        self._hash_seed = hash_seed
        self._voice = voice
        self._decided = decided
        self._wall_offset_ms = clock.wall_ms() - clock.monotonic_ms()

    def __repr__(self) -> str:
        return f"<Dispatch {self._flights!r}>"

    def check_known(self, model: str) -> None:
        """UnknownModel if there was never a worker for it, NoWorkers if none is connected yet."""
        if model not in self._fleet.catalog:
            roles = {each.role for each in self._fleet.registered.values() if each.model == model}
            if roles == {PREFILL}:
                raise NoWorkers(f"the model {model!r} {ONLY_PREFILL}")
            if roles:
                raise NoWorkers(f"the workers of model {model!r} are not connected yet")
            raise UnknownModel(f"the model {model!r} does not exist")

    async def generate(
        self, model: str, request: GenerateRequest, ended: Callable[[], str | None] = lambda: None
    ) -> AsyncIterator[Output]:
        """Tokens of the request, from the worker that the decision chose; closing it cancels there.

        When it is closed early, `ended` says how the answer ended for the client (`stop`, for a stop string), or None
        if the client went away; the log has it then.
        UnknownModel, NoWorkers, Overloaded, or CallerError (the engine cannot take it) before the first token;
        GenerationFailed when the worker breaks off after it.
        """
        self.check_known(model)
        request = self._renamed(request)
        scope = scope_bytes(request.adapter, request.cache_salt)
        arrived_ms = self._clock.monotonic_ms()
        told, failure = Told(request), ""
        for attempt in range(ATTEMPTS_MAX):
            rest = told.rest()
            prompt = Prompt(rest.tokens, self._fleet.catalog.block_size(model), self._hash_seed, scope)
            asked = RouteRequest(request.id, attempt, model, prompt, request.tenant or "", request.priority)
            try:
                flight = self._route(asked, rest, arrived_ms)
            except NoWorkers as error:
                if told.tokens:
                    raise GenerationFailed(f"the worker broke off, and {error}") from error
                raise
            try:
                async with aclosing(flight.outputs()) as outputs:
                    async for output in outputs:
                        yield told.tell(output)
                return  # noqa: TRY300  # the loop is over when an attempt ends well
            except WorkerGone as error:
                self._fleet.failed(flight.worker)
                _logger.warning("trying another worker: %s", error, extra={"request_id": request.id})
                if told.tokens and not told.resumable:
                    raise GenerationFailed(f"the worker broke off: {error}") from error
                if told.complete:
                    yield Output(finish="length")
                    return
                failure = str(error)
                self._migrated(asked, flight, told, failure)
            finally:
                flight.close(ended() or "abort")
        if told.tokens:
            raise GenerationFailed(f"{ATTEMPTS_MAX} workers broke off, the last one: {failure}")
        raise NoWorkers(f"{ATTEMPTS_MAX} workers failed before the first token")

    def _migrated(self, asked: RouteRequest, flight: Flight, told: Told, reason: str) -> None:
        """The log knows that the next attempt, if there is one, goes on with an answer that was begun."""
        if told.tokens and asked.attempt + 1 < ATTEMPTS_MAX:
            self._voice().say(
                RequestMigrated(
                    request=asked.id,
                    attempt=asked.attempt + 1,
                    worker=flight.worker,
                    told_tokens=len(told.tokens),
                    reason=reason,
                )
            )

    def view(self) -> View:
        """What a decision made now sees; what of it only we know is said in the log first."""
        voice = self._voice()
        alive = [member.worker for member in self._state.alive()]
        local = self._fleet.local(alive, self._suspicion.suspected)
        voice.say_local(local)
        return View(self._state, voice.id, voice.ahead, local)

    def _renamed(self, request: GenerateRequest) -> GenerateRequest:
        """The request under an id that no other one here has: clients may send one id twice at a time."""
        if not self._flights.under_way(request.id):
            return request
        return msgspec.structs.replace(request, id=RequestId(f"{request.id}.{secrets.token_hex(4)}"))

    def _route(self, asked: RouteRequest, request: GenerateRequest, arrived_ms: int) -> Flight:
        """The request is on its way to the chosen worker, and the decision on its way to the log."""
        started_us = self._clock.monotonic_us()
        now_ms = self._wall_offset_ms + started_us // 1000
        seed = secrets.randbits(64)
        decision = decide(self.view(), asked, self._live.current, now_ms, seed)
        self._decided(self._live.current.policy, (self._clock.monotonic_us() - started_us) / 1e6)
        if decision.worker is None:
            raise self._rejected(asked, decision)
        # the worker gets the request first: the record costs a digest per block
        hint = Hint(asked.attempt, decision.prefer, decision.prefer_tokens)
        stream = self._fleet.links[decision.worker].open(asked.model, request, hint)
        try:
            event = record(decision, asked, self._live.current, self._live.revision)
            self._voice().say(event)
        except BaseException:  # whatever it was, the worker would go on for nobody
            stream.close()
            raise
        return Flight(event, stream, self._flights, arrived_ms)

    def _rejected(self, asked: RouteRequest, decision: Decision) -> NoWorkers:
        overloaded = "overloaded" in decision.excluded
        reasons = {reason: len(ids) for reason, ids in decision.excluded.items() if reason != "other_model"}
        text = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in reasons.items())
        if not text and any(m.joined is not None and m.joined.model == asked.model for m in self._state.prefilling()):
            text = f"it {ONLY_PREFILL}"
        event = RequestRejected(
            request=asked.id,
            attempt=asked.attempt,
            model=asked.model,
            reason="overloaded" if overloaded else "no_workers",
            status=503,
            cursor=decision.cursor,
            excluded=shown(decision.excluded),
            settings_revision=self._live.revision,
            now_ms=decision.now_ms,
        )
        self._voice().say(event)
        kind = Overloaded if overloaded else NoWorkers
        return kind(f"no worker can take requests for model {asked.model!r} now ({text or 'none is there'})")

"""Router: one replica. Decides, sends, and says in the log what it decided and what came of it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from actors.entry import Entry
from actors.fleet import Fleet
from actors.flight import ATTEMPTS_MAX, Flight, Flights
from actors.line import WorkerGone
from actors.live_settings import LiveSettings
from actors.suspicion import ReplicaLook, Suspicion
from actors.voice import Voice
from actors.wire import PROTOCOL, Hello
from core.clock import Clock
from core.events import Event, ReplicaJoined, RequestRejected
from core.generation import GenerateRequest, Output
from core.ids import ReplicaId, RequestId, WorkerId
from core.keys import DeploymentKey
from core.models import GenerationFailed, ModelCard, NoWorkers, Overloaded, UnknownModel
from core.prompt import Prompt, scope_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING, is_kv
from projections.decide import Decision, decide, record, shown
from projections.runner import Runner
from projections.state import Applied, State
from projections.view import RouteRequest, View
from streams.log import EventLog
from streams.registry import Change, Registry

VERSION = "0.1.0"
RESTATE_EVERY_S = 7 * 86_400 / 4
"""Who we are and what is in flight is said again this often, a quarter of the retention time."""
RESTATE_ASK_MS = 10_000
"""A worker whose cache we lost track of is asked this often at most."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions:
    """How a replica is known."""

    namespace: str
    name: str
    address: str = ""
    """Where its API listens."""
    restate_every_s: float = RESTATE_EVERY_S
    lease_ms: int = 10_000
    """The registry's lease time: how long a silent worker stays registered."""


class Router:
    """A full set of projections with the hands to act on them. One event loop owns it."""

    def __init__(
        self,
        options: RouterOptions,
        log: EventLog,
        registry: Registry,
        clock: Clock,
        key: DeploymentKey,
        settings: RoutingSettings,
        decided: Callable[[str, float], None],
    ) -> None:
        """`decided` hears of each decision: the policy, and how many seconds it took."""
        self.options = options
        self.live = LiveSettings(settings, self._say_settings)
        self.state = State(key.chain_key)
        self.runner = Runner(log, self.state, self._on_applied)
        self.fleet = Fleet(registry, clock, self._hello, self._on_fleet)
        self.flights = Flights(self._say, clock)
        self.suspicion = Suspicion(options.namespace, log, self.fleet, self.state, clock, options.lease_ms)
        self._log = log
        self._registry = registry
        self._clock = clock
        self._key = key
        self._decided = decided
        self._details: dict[str, object] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._defect = ""
        self._stopping = False
        self._asked_ms: dict[WorkerId, int] = {}
        self._wall_offset_ms = clock.wall_ms() - clock.monotonic_ms()
        self.voice = self._new_voice()
        self._entry = Entry(registry, f"replicas/{self.voice.id}")
        self._look = ReplicaLook(self.voice.id)

    def __repr__(self) -> str:
        return f"<Router {self.options.name} {self.voice.id}, {self.runner!r}, {self.fleet!r}>"

    async def start(self, details: dict[str, object]) -> None:
        """The fold runs, workers are followed, the replica is registered; `details` go into the registry too.

        Unavailable, and nothing is left of it, if the registry is away.
        """
        self._details = details
        try:
            await self._start()
        except BaseException:
            await self.stop("it could not start")
            raise

    async def _start(self) -> None:
        self.runner.start()
        self._say_hello()
        await self.live.follow(self._registry)
        await self._registry.watch("replicas/", self._on_replica)
        await self.fleet.start()
        await self._register()
        self._spawn(self.suspicion.run(self._look))
        self._spawn(self._restate_loop())

    async def stop(self, reason: str) -> None:
        """The log and the registry know that this replica is gone; no connection is left.

        Every step has a bound, and none keeps the next one from being taken.
        """
        self._stopping = True
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self.runner.stop)
            last_first.push_async_callback(self.fleet.close)
            last_first.push_async_callback(self._entry.remove)
            last_first.push_async_callback(self.voice.leave, reason)
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    @property
    def settings(self) -> RoutingSettings:
        """What the next decision goes by."""
        return self.live.current

    def ready(self) -> tuple[bool, dict[str, str]]:
        """Whether the log is caught up and every model known has a worker; and what is missing."""
        waits: dict[str, str] = {}
        if not self.runner.caught_up:
            waits["log"] = f"{self.runner.lag_events} messages behind" if self.runner.lag else "not read yet"
        if self._defect:
            waits["router"] = self._defect
        cards = self.models()
        if not cards:
            waits["models"] = "no worker has registered yet"
        waits |= {f"model {card.name}": "no worker is connected" for card in cards if not card.workers}
        return not waits, waits

    def describe(self) -> dict[str, Any]:
        """Who this is and how far it has folded; the digest is of the fold alone, comparable at equal cursors."""
        return {
            "replica": self.voice.id,
            "name": self.options.name,
            "cursor": {stream: at.seq for stream, at in sorted(self.state.cursor.items())},
            "digest": f"{self.state.digest:016x}",
            "lag_events": self.runner.lag_events,
            "incomplete": self.state.incomplete,
            "corrupt": self.state.corrupt,
            "unknown_events": self.state.unknown_events,
            "ahead": len(self.voice.ahead),
            "in_flight": len(self.flights.open),
            "workers": {member.worker: self.state.index.blocks(member.worker) for member in self.state.alive()},
        }

    def models(self) -> list[ModelCard]:
        """Every model that can be spoken for, by name."""
        return [self.card(model) for model in self.fleet.catalog.models]

    def card(self, model: str) -> ModelCard:
        """The model's card. UnknownModel if there was never a worker for it."""
        self._check_known(model)
        members = (member for kv in self.state.kv.values() for member in kv.alive.values())
        workers = sum(
            m.joined is not None and m.joined.model == model and self.fleet.connected(m.worker) for m in members
        )
        return self.fleet.catalog.card(model, workers)

    def _check_known(self, model: str) -> None:
        if model not in self.fleet.catalog:
            if any(registration.model == model for registration in self.fleet.registered.values()):
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
        self._check_known(model)
        request = self._renamed(request)
        scope = scope_bytes(request.adapter, request.cache_salt)
        prompt = Prompt(request.tokens, self.fleet.catalog.block_size(model), self._key.hash_seed, scope)
        arrived_ms = self._clock.monotonic_ms()
        for attempt in range(ATTEMPTS_MAX):
            asked = RouteRequest(request.id, attempt, model, prompt, request.tenant or "", request.priority)
            flight = self._route(asked, request, arrived_ms)
            try:
                async with aclosing(flight.outputs()) as outputs:
                    async for output in outputs:
                        yield output
                return  # noqa: TRY300  # the loop is over when an attempt ends well
            except WorkerGone as error:
                self.fleet.failed(flight.worker)
                if flight.output_tokens:
                    raise GenerationFailed(f"the worker broke off: {error}") from error
                _logger.warning("trying another worker: %s", error, extra={"request_id": request.id})
            finally:
                flight.close(ended() or "abort")
        raise NoWorkers(f"{ATTEMPTS_MAX} workers failed before the first token")

    def view(self) -> View:
        """What a decision made now sees; what of it only we know is said in the log first."""
        alive = [member.worker for member in self.state.alive()]
        local = self.fleet.local(alive, self.suspicion.suspected)
        self.voice.say_local(local)
        return View(self.state, self.voice.id, self.voice.ahead, local)

    def _renamed(self, request: GenerateRequest) -> GenerateRequest:
        """The request under an id that no other one here has: clients may send one id twice at a time."""
        if not self.flights.under_way(request.id):
            return request
        return msgspec.structs.replace(request, id=RequestId(f"{request.id}.{secrets.token_hex(4)}"))

    def _route(self, asked: RouteRequest, request: GenerateRequest, arrived_ms: int) -> Flight:
        """The request is on its way to the chosen worker, and the decision on its way to the log."""
        started_us = self._clock.monotonic_us()
        now_ms = self._wall_offset_ms + started_us // 1000
        seed = secrets.randbits(64)
        decision = decide(self.view(), asked, self.settings, now_ms, seed)
        self._decided(self.settings.policy, (self._clock.monotonic_us() - started_us) / 1e6)
        if decision.worker is None:
            raise self._rejected(asked, decision)
        # the worker gets the request first: the record costs a digest per block
        stream = self.fleet.links[decision.worker].open(asked.model, request)
        try:
            event = record(decision, asked, self.settings, self.live.revision)
            self.voice.say(event)
        except BaseException:
            stream.close()  # else the worker would go on for nobody
            raise
        return Flight(event, stream, self.flights, arrived_ms)

    def _rejected(self, asked: RouteRequest, decision: Decision) -> NoWorkers:
        overloaded = "overloaded" in decision.excluded
        reasons = {reason: len(ids) for reason, ids in decision.excluded.items() if reason != "other_model"}
        text = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in reasons.items())
        event = RequestRejected(
            request=asked.id,
            attempt=asked.attempt,
            model=asked.model,
            reason="overloaded" if overloaded else "no_workers",
            status=503,
            cursor=decision.cursor,
            excluded=shown(decision.excluded),
            settings_revision=self.live.revision,
            now_ms=decision.now_ms,
        )
        self.voice.say(event)
        kind = Overloaded if overloaded else NoWorkers
        return kind(f"no worker can take requests for model {asked.model!r} now ({text or 'none is there'})")

    def _say(self, event: Event) -> None:
        self.voice.say(event)

    def _new_voice(self) -> Voice:
        return Voice(
            self.options.namespace,
            self._log,
            self._clock,
            self._key,
            self.state,
            restate=self._restatement,
            on_superseded=self._on_superseded,
        )

    def _restatement(self) -> list[Event]:
        """Events were dropped, or the log does not end where we left it: who we are and all that counts now."""
        return [self._joined(), self.live.event(), self.flights.restated("events of ours are missing")]

    def _say_hello(self) -> None:
        """The first words of a life: who it is, what it decides by."""
        self.voice.start(self._joined())
        self._say_settings()

    def _joined(self) -> ReplicaJoined:
        return ReplicaJoined(name=self.options.name, version=VERSION, address=self.options.address)

    async def _restate_loop(self) -> None:
        """The first one comes at a moment of the id's own, so that replicas do not speak all at once."""
        await asyncio.sleep(self.options.restate_every_s * int(self.voice.id, 16) / 2**64)
        while True:
            self.voice.say(self._joined())
            self._say_settings()
            self.voice.restate(self.flights.restated("the quarter of the retention time is over"))
            await asyncio.sleep(self.options.restate_every_s)

    def _say_settings(self) -> None:
        self.voice.say(self.live.event())

    def _on_superseded(self) -> None:
        """Our end was written though we live: it stands, we go on at once under a new id with what is in flight."""
        if self._stopping:
            return
        before, self.voice = self.voice, self._new_voice()
        self._look.replica = self.voice.id
        self._say_hello()
        self.voice.restate(self.flights.restated(f"was {before.id}"))
        entry, self._entry = self._entry, Entry(self._registry, f"replicas/{self.voice.id}")
        self._spawn(self._settle(before, entry))

    async def _settle(self, before: Voice, entry: Entry) -> None:
        """The registry knows us as we are now."""
        await before.end()
        await self._register()
        await entry.remove()

    async def _register(self) -> None:
        about = {"id": self.voice.id, "name": self.options.name, "address": self.options.address}
        await self._entry.put({**about, **self._details})

    def _hello(self) -> Hello:
        return Hello(protocol=PROTOCOL, key=self._key.door_key, namespace=self.options.namespace, replica=self.voice.id)

    def _on_applied(self, applied: Applied) -> None:
        """Reacts to what the fold just took in."""
        if applied.stream == LOAD:
            self.fleet.heard(WorkerId(applied.owner))
        elif applied.stream == ROUTING:
            if applied.changed and applied.owner == self.voice.id:
                self.voice.read_back(applied.message.events)
        elif is_kv(applied.stream):
            self._on_worker(WorkerId(applied.owner))

    def _on_worker(self, worker: WorkerId) -> None:
        member = self.state.member(worker)
        if member is None:
            return
        if member.ended:
            self._asked_ms.pop(worker, None)
        elif not member.cache_known:
            self._ask_to_restate(worker)

    def _ask_to_restate(self, worker: WorkerId) -> None:
        now, link = self._clock.monotonic_ms(), self.fleet.links.get(worker)
        if link is None or not link.up or now - self._asked_ms.get(worker, -RESTATE_ASK_MS) < RESTATE_ASK_MS:
            return
        self._asked_ms[worker] = now
        _logger.warning("lost track of the cache of worker %s: asking for a restatement", worker)
        link.restate()

    def _on_fleet(self) -> None:
        for member in self.state.alive():
            if not member.cache_known:
                self._ask_to_restate(member.worker)

    def _on_replica(self, change: Change) -> None:
        replica = ReplicaId(change.key.rpartition("/")[2])
        if change.value is None:
            self._look.registered.discard(replica)
        else:
            self._look.registered.add(replica)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _logger.error("a part of the router failed", exc_info=task.exception())
            self._defect = f"a part failed: {task.exception()!r}"

"""Router: one replica, with its folds, its fleet, its membership in the log, and its requests in progress."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from actors.consistency.digest_checkpoints import CHECKPOINT_EVERY
from actors.membership.failure_detector import FailureDetector
from actors.membership.loss_log import LossLog
from actors.membership.registration import Registration
from actors.membership.replica_membership import ReplicaMembership
from actors.membership.routing_publisher import RoutingPublisher
from actors.prompt_cache.digest_store import DigestStore
from actors.prompt_cache.hash_columns import HashColumns
from actors.router.adapter_catalog import AdapterCatalog
from actors.router.adapter_changes import AdapterChanges
from actors.router.background_tasks import BackgroundTasks, TakeSnapshot
from actors.router.capacity import ConnectedWorkers
from actors.router.fleet import Fleet
from actors.router.kept_models import KeptModels
from actors.router.live_requests import LiveRequests
from actors.router.liveness_monitor import LivenessMonitor
from actors.router.request_scheduler import (
    ONLY_PREFILL,
    ClockCorrected,
    Draining,
    LoadChanged,
    RequestScheduler,
    SettingsReplaced,
)
from actors.router.reservations import Reservation, ReservationBounds, Reservations, RoutedDecision
from actors.router.router_status import fold_status, prefill_status, publisher_status, rss_bytes
from actors.transport.handshake import NO_LINK_OPTIONS, LinkOptions
from core.clock import Clock
from core.events import Event, LoadReported, ReplicaJoined
from core.events.kv import PREFILL
from core.events.routing import (
    INTERNAL,
    PROGRAM_VERSION,
    ROUTED_VERSION,
    TURNED_AWAY,
    AnswerDelayed,
    RequestTurnedAway,
)
from core.failure import detail_of, is_in_log
from core.generation import GenerateRequest, IntakeTimes, OutputConsumer
from core.ids import WorkerId
from core.keys import DeploymentKey
from core.models import ModelCard, NoWorkers, unknown_model
from core.readiness import Readiness
from core.settings import RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.folds.state import Applied, State
from projections.policy.decide import COLUMNS_WORKERS_MIN
from projections.policy.view import View
from projections.runner.runner import Runner
from streams.broker_clock import BrokerClock
from streams.live_settings import LiveSettings
from streams.log import EventLog
from streams.log_watch import LogWatch
from streams.outbox.journal import CAPACITY_BYTES
from streams.registry import Registry
from streams.snapshot_store import SnapshotStore

RESTATE_EVERY_S = 7 * 86_400 / 4
"""Period of restatements of identity and requests in flight: a quarter of the retention time."""
LOG_AWAY_REPORTED_S = 3.0
"""A log that acknowledges nothing for so long is reported as away."""
LOG_AWAY_S = 1.0
"""A log that acknowledges nothing for so long is away for the scheduler: no request is held."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions:
    """Identity of a replica, its journal and its snapshots."""

    namespace: str
    name: str
    address: str = ""
    """The address of its API."""
    restate_every_s: float = RESTATE_EVERY_S
    lease_ms: int = 10_000
    """The registry's lease time: how long a silent worker stays registered."""
    journal: Path | None = None
    """Folder of the journal: decisions wait there for the log and outlive this process. None keeps them in memory."""
    journal_bytes: int = CAPACITY_BYTES
    """Bound of the journal."""
    snapshot_every_s: float = 3600
    take_snapshot: TakeSnapshot | None = None
    """Called when this replica is elected and a snapshot is due. With None, this replica takes none."""
    link: LinkOptions = NO_LINK_OPTIONS
    texts: DigestStore = field(default_factory=DigestStore)
    """Keeps the block hashes of prompts; the API may keep the token ids of their texts there, too."""
    reservations: ReservationBounds = field(default_factory=ReservationBounds)
    from_zero: frozenset[str] = frozenset()
    """Models that may have no worker: a planner starts one when requests wait for it."""


class Router:
    """One replica: a full set of projections and the parts that act on them. One event loop owns it."""

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
        """`decided` is called with each decision's policy and its duration in seconds."""
        system_clock, self._clock = clock, BrokerClock(clock)
        self.options = options
        self.live_settings = LiveSettings(settings, self._publish_settings)
        self.state = State(key.chain_key)
        self._loads_columns = False
        store = SnapshotStore(log, options.namespace, key.chain_key)
        self.runner = Runner(
            log,
            self.state,
            self._on_applied,
            store=store,
            is_mine=lambda owner: owner == self.publisher.id,
            on_became=self._on_became,
        )
        self.link = options.link.security(key, options.namespace, system_clock)
        self.fleet = Fleet(
            registry, self._clock, self.link, lambda: self.publisher.id, self._on_fleet, self._on_learned
        )
        self.scheduler = RequestScheduler(
            self, settings, 0, seed=secrets.randbits(64), wall_offset_ms=self._clock.wall_offset_ms
        )
        self.failure_detector = FailureDetector(options.lease_ms)
        self.membership = ReplicaMembership(
            options.namespace,
            log,
            registry,
            self._clock,
            key,
            ReplicaJoined(name=options.name, version=PROGRAM_VERSION, address=options.address, reads=ROUTED_VERSION),
            self.state,
            restate=self._restatement,
            journal=options.journal,
            journal_bytes=options.journal_bytes,
            spawn=self._spawn,
        )
        losses = LossLog(options.namespace, log, self.state, self._clock)
        self.liveness_monitor = LivenessMonitor(
            self.failure_detector, losses, self.fleet, self.membership, self.state, self._clock
        )
        self.requests = LiveRequests(
            self.scheduler,
            self.fleet,
            self.state,
            self._clock,
            key.hash_seed,
            HashColumns(options.texts, key.hash_seed, self.link.key),
            membership=self.membership,
            decided=decided,
        )
        self.reservations = Reservations(self.requests, self.fleet, self.state, self._clock, options.reservations)
        self._adapters = AdapterCatalog(self.state)
        self.adapter_changes = AdapterChanges(self.fleet, self._adapters, self._worker_name)
        self._connected = ConnectedWorkers(self.state, self.fleet)
        self._log_watch = LogWatch(log, self._clock, self._on_clock_corrected)
        self.background_tasks = BackgroundTasks(
            options.namespace,
            log,
            self._log_watch,
            registry,
            self._clock,
            key,
            self.state,
            self.runner,
            store,
            self.membership,
            self.fleet,
            journal=options.journal,
            snapshot_every_s=options.snapshot_every_s,
            take_snapshot=options.take_snapshot,
            restate_every_s=options.restate_every_s,
        )
        self._registry = registry
        self._kept_models = KeptModels(registry, key.chain_key, options.from_zero)
        self._tasks: set[asyncio.Task[None]] = set()
        self._defect = ""
        self.stopping = False
        """This replica is not ready any more; requests that arrive are still served."""

    def __repr__(self) -> str:
        return f"<Router {self.options.name} {self.publisher.id}, {self.runner!r}, {self.fleet!r}>"

    async def start(self, details: dict[str, object]) -> None:
        """The fold runs, workers are followed, the replica is registered; `details` go into the registry too.

        Unavailable, and nothing is left of it, if the registry is away.
        """
        try:
            await self._start(details)
        except BaseException:  # a cancelled start, too, leaves nothing behind
            await self.stop("it could not start")
            raise

    async def _start(self, details: dict[str, object]) -> None:
        await self._log_watch.start()
        self.runner.start()
        self.membership.join()
        self.membership.publish(self.live_settings.event())
        await self.live_settings.follow(self._registry)
        await self.liveness_monitor.follow(self._registry)
        for kept in await self._kept_models.load():
            self.fleet.catalog.restore(kept.registration, kept.files)
        await self.fleet.start()
        await self.membership.register(details)
        self._spawn(self.liveness_monitor.run())
        for loop in self.background_tasks.loops():
            self._spawn(loop)

    async def stop(self, reason: str) -> None:
        """The log and the registry know that this replica is gone; no connection is left.

        Every step has a bound, and none keeps the next one from being taken.
        """
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self.runner.stop)
            last_first.push_async_callback(self.fleet.close)
            last_first.push_async_callback(self.membership.leave, reason)
            last_first.push_async_callback(self.background_tasks.stop)
            self.requests.feed(Draining())
            self.reservations.close()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    @property
    def publisher(self) -> RoutingPublisher:
        """The publisher under the present id."""
        return self.membership.publisher

    @property
    def settings(self) -> RoutingSettings:
        """The settings of the next decision."""
        return self.live_settings.current

    def ready(self) -> Readiness:
        """Readiness: the fold has caught up with the log and models have workers; else the parts that are missing.

        A model without a connected worker is waited for while a worker of it is registered. A model without any worker
        does not keep the others from being served. A known model of a fleet that may be at zero is served.
        """
        if self.stopping:
            return Readiness(ready=False, waiting_for={"end": "stopping"})
        waits: dict[str, str] = {}
        if not self.runner.caught_up:
            waits["log"] = f"{self.runner.lag_events} messages behind" if self.runner.lag else "not read yet"
        if self.publisher.outbox.error is not None:
            waits["log"] = f"takes nothing of this replica any more: {self.publisher.outbox.error}"
        if self._defect:
            waits["router"] = self._defect
        missing = [card.name for card in self.models() if not (card.workers or self.starts_from_zero(card.name))]
        degraded = {f"model {name}": "no worker is connected" for name in missing}
        served = len(self.fleet.catalog.models) - len(degraded)
        due = {f"model {each.model}" for each in self.fleet.registered.values() if each.role != PREFILL}
        if not served and not degraded:
            waits["models"] = "no worker has registered yet"
        for model in degraded.keys() & due if served else list(degraded):
            waits[model] = degraded.pop(model)
        return Readiness(not waits, waits, degraded | self._degraded())

    def _degraded(self) -> dict[str, str]:
        """Parts that are away while requests are served."""
        found = self.link.degraded()
        if self._clock.refused:
            found["clock"] = self._clock.refused
        outbox = self.publisher.outbox
        if outbox.away_s >= LOG_AWAY_REPORTED_S:
            found["log"] = f"away for {outbox.away_s:.0f} s, {outbox.depth} events wait"
        if not self.fleet.registry_healthy:
            found["registry"] = "away: no worker can come, no setting can change"
        if self.state.incomplete:
            found["caches"] = f"{self.state.incomplete} sources are unknown until they restate themselves"
        return found

    def describe(self) -> dict[str, Any]:
        """Facts for `/state`: identity, position and digest of the fold. Digests of replicas are comparable at equal
        cursors."""
        return {
            "replica": self.publisher.id,
            "name": self.options.name,
            "settings_revision": self.live_settings.revision,
            **fold_status(self.state, self.runner),
            **publisher_status(self.publisher),
            **self.background_tasks.describe(),
            "prefill": prefill_status(self.state.jobs, self._clock.wall_ms(), self.scheduler.prefills),
            "in_flight": len(self.scheduler.running),
            "admission": self.scheduler.describe(),
            "held": len(self.scheduler.held),
            "declined": self.scheduler.busy_workers.count,
            "fetches": self.scheduler.fetches.describe(),
            "reservations": self.reservations.describe(),
            "clock": self._clock.describe(),
            "link": self.link.describe(),
            "rss_bytes": rss_bytes(),
        }

    def models(self) -> list[ModelCard]:
        """The cards of all known models, sorted by name."""
        return [self.card(model) for model in self.fleet.catalog.models if self.model_of(model) == model]

    def model_of(self, name: str) -> str:
        """The model that has this name or alias, or an adapter of this name; the name itself if there is none."""
        found = self.fleet.catalog.model_of(name)
        if found not in self.fleet.catalog and (adapter := self._adapters.find(name)) is not None:
            return adapter.model
        return found

    def card(self, model: str) -> ModelCard:
        """The card of the model that has this name, or of the adapter that has it. UnknownModel if there was never a
        worker for it."""
        name, model = model, self.model_of(model)
        self._check_known(model)
        card = self.fleet.catalog.card(model, self.connected(model))
        if not (adapters := self._adapters.of(model)):
            return card
        is_model = self.fleet.catalog.model_of(name) == model
        asked = None if is_model else next((each for each in adapters if each.name == name), None)
        return dataclasses.replace(card, adapters=adapters, adapter=asked)

    def _check_known(self, model: str) -> None:
        """UnknownModel if there was never a worker for it, NoWorkers if none is connected yet."""
        if model not in self.fleet.catalog:
            roles = {each.role for each in self.fleet.registered.values() if each.model == model}
            if roles == {PREFILL}:
                raise NoWorkers(f"the model {model!r} {ONLY_PREFILL}")
            if roles:
                raise NoWorkers(f"the workers of model {model!r} are not connected yet")
            if self.starts_from_zero(model):
                raise NoWorkers(f"no worker of model {model!r} was there yet: start one (`contrail scale set min 1`)")
            raise unknown_model(model, self.fleet.catalog.all_names())

    async def run(self, model: str, request: GenerateRequest, consumer: OutputConsumer) -> None:
        """The consumer has the answer: see `LiveRequests.run`; UnknownModel or NoWorkers if the model is not known."""
        self._check_known(model)
        await self.requests.run(model, request, consumer)

    async def reserve(self, model: str, request: GenerateRequest, intake: IntakeTimes | None) -> Reservation:
        """See `Reservations.reserve`; UnknownModel or NoWorkers if the model is not known."""
        self._check_known(model)
        return await self.reservations.reserve(model, request, intake)

    def preview(self, model: str, request: GenerateRequest) -> RoutedDecision:
        """See `Reservations.preview`; UnknownModel or NoWorkers if the model is not known."""
        self._check_known(model)
        return self.reservations.preview(model, request)

    def failed(self, request: str, model: str, tenant: str, error: Exception) -> None:
        """The log has the failure of the request inside this process, with its type and line, unless `run` reported it.
        The name of an unknown model is left out: it is a client's text."""
        if is_in_log(error):
            return
        model = self.model_of(model)
        known = model in self.fleet.catalog
        if known:
            self.scheduler.counts.on_turned_away(model, INTERNAL)
        self.membership.publish(
            RequestTurnedAway(
                request=request,
                model=model if known else "",
                reason=INTERNAL,
                status=TURNED_AWAY[INTERNAL],
                waited_ms=-1,
                tenant=tenant,
                detail=detail_of(error),
            )
        )

    def delayed(self, request: str, written_ms: int, stalled_ms: int, unsent_bytes: int) -> None:
        """The log has that the client took its answer late."""
        self.membership.publish(
            AnswerDelayed(request=request, written_ms=written_ms, stalled_ms=stalled_ms, unsent_bytes=unsent_bytes)
        )

    def _worker_name(self, worker: str) -> str:
        member = self.state.member(WorkerId(worker))
        return member.joined.name if member is not None and member.joined is not None else worker

    # --- what the scheduler reads ------------------------------------------------------------------------------

    def view(self) -> View:
        """All that a decision made now may read."""
        publisher = self.publisher
        local = self.fleet.local(self.state.workers(), self.failure_detector.suspected)
        return View(self.state, publisher.id, publisher.pending_events, local)

    def slots(self, worker: WorkerId) -> int:
        """Requests that the worker's engine runs at once; 0 if unknown."""
        registration = self.fleet.registered.get(worker)
        return 0 if registration is None else registration.slots

    def connected(self, model: str) -> int:
        """Workers of the model to which a request can be sent now."""
        return self._connected.of(model)

    def awaits_join(self, model: str) -> bool:
        """True if a worker of the model is connected whose join the fold does not have. O(workers)."""
        joined = {each.worker for each in self.state.alive()}
        return any(
            each.model == model and each.role != PREFILL and worker not in joined and self.fleet.connected(worker)
            for worker, each in self.fleet.registered.items()
        )

    def starts_from_zero(self, model: str) -> bool:
        """True if a planner starts the model's first worker when requests wait for one."""
        return model in self.options.from_zero

    def is_log_away(self) -> bool:
        """True if the log has acknowledged nothing for LOG_AWAY_S."""
        return self.publisher.outbox.away_s >= LOG_AWAY_S

    # --- what happens ------------------------------------------------------------------------------------------

    def _publish_settings(self) -> None:
        self.membership.publish(self.live_settings.event())
        self.requests.feed(SettingsReplaced(self.live_settings.current, self.live_settings.revision))

    def _on_clock_corrected(self) -> None:
        self.requests.feed(ClockCorrected(self._clock.wall_offset_ms))

    def _restatement(self, why: str) -> list[Event]:
        """The settings of decisions, and all requests in flight."""
        return [self.live_settings.event(), self.scheduler.restatement(why)]

    def _on_applied(self, applied: Applied) -> None:
        """Reacts to a message that was just folded."""
        is_own = applied.owner == self.publisher.id
        if applied.stream == LOAD:
            self.fleet.on_load_report(WorkerId(applied.owner))
            if self._is_too_much(self.state.loads.reports.get(WorkerId(applied.owner))):
                self.requests.feed(LoadChanged())
        elif applied.stream == ROUTING and applied.changed:
            self.membership.bases.note(self.state.cursor[ROUTING].epoch, applied.seq, applied.message.events)
            if is_own:
                self.publisher.read_back(applied.message)
                self._check_superseded()
        if applied.changed and not is_own and self.scheduler.requests and self.scheduler.has_waiting:
            self.requests.feed(LoadChanged())
        if applied.seq % CHECKPOINT_EVERY == 0:
            self.background_tasks.on_checkpoint(applied.stream, applied.seq)
        if applied.stream == ROUTING and not is_own:
            self.background_tasks.on_routed(applied)

    def _is_too_much(self, report: LoadReported | None) -> bool:
        """True if the worker is to get no request for now."""
        return report is not None and (report.draining or report.waiting >= self.live_settings.current.waiting_max)

    def _on_became(self) -> None:
        self._check_superseded()
        self.publisher.refold()
        self.membership.bases.clear()
        self.background_tasks.on_state_replaced()

    def _check_superseded(self) -> None:
        """The replica goes on under another id if the fold has the end of the present one: its pending events would not
        add up with a fold that has none of its requests."""
        if self.publisher.id in self.state.routing.ended:
            self.publisher.mark_superseded(f"{ROUTING}:{self.state.cursor[ROUTING].seq}")

    def _on_learned(self, registration: Registration, files: dict[str, bytes]) -> None:
        if self.starts_from_zero(registration.model):
            self._spawn(self._kept_models.keep(registration, files))

    def _on_fleet(self) -> None:
        self.background_tasks.check_sources()
        self.requests.feed(LoadChanged())
        if not self._loads_columns and len(self.fleet.registered) >= COLUMNS_WORKERS_MIN:
            self._loads_columns = True
            self._spawn(_load_columns())

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _logger.error("a part of the router failed", exc_info=task.exception())
            self._defect = f"a part failed: {task.exception()!r}"


async def _load_columns() -> None:
    """The modules of decisions among many workers are there; the event loop would stand for 80 ms at the import."""
    await asyncio.to_thread(import_module, "projections.policy.column_decision")

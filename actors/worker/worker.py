"""Worker: one engine, its cache mirror, its membership in log and registry, and its TCP server."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from actors.disagg.decode_role import DecodeRole
from actors.disagg.prefill_peers import PrefillConnection
from actors.disagg.prefill_role import PrefillRole
from actors.disagg.worker_role import AggregatedRole, WorkerRole
from actors.engines.engine import CacheChange, Engine
from actors.kv_blocks.pool_folder import PoolDescription, PoolFolder
from actors.kv_cache.cache_mirror import CacheMirror
from actors.kv_pool.pool_keeper import PoolKeeper
from actors.kv_pool.pool_place import PoolPlace, place_of
from actors.kv_pool.shared_pool import SharedPool
from actors.membership.registration import advertised_address
from actors.membership.restatement_schedule import RestatementSchedule
from actors.membership.worker_membership import WorkerMembership
from actors.membership.worker_publisher import WorkerPublisher
from actors.prompt_cache.prompt_store import PROMPTS_BYTES_MAX
from actors.transport.frames import (
    AdapterChanged,
    BlocksErased,
    EraseBlocks,
    FromPrefill,
    Generate,
    LoadAdapter,
    PoolContent,
    PoolTenant,
    UnloadAdapter,
    Welcome,
)
from actors.transport.handshake import NO_LINK_OPTIONS, LinkOptions
from actors.transport.worker_server import WorkerServer
from actors.worker.adapter_placement import PLACED, AdapterPlacement
from actors.worker.adapter_slots import AdapterSlots
from actors.worker.engine_watchdog import wait_until_dead
from actors.worker.graceful_drain import DRAIN_TIMEOUT_S, GracefulDrain
from actors.worker.load_reporter import LoadReporter
from actors.worker.model_files import ChatFormat, tokenizer_files
from actors.worker.worker_adapters import WorkerAdapters
from core.clock import Clock
from core.errors import CallerError, ContrailError
from core.events import Adapter, AdapterChange, PoolAccess, PoolJoined, WorkerJoined
from core.events.kv import PREFILL
from core.generation import Output
from core.ids import StreamName
from core.keys import DeploymentKey
from core.prompt import hashes_to_bytes
from core.settings import RoutingSettings
from core.subjects import ROUTING, kv_stream
from streams.broker_clock import BrokerClock
from streams.log import EventLog
from streams.log_watch import WORKER_POLL_EVERY_S, LogWatch
from streams.registry import Registry

RESTATE_ASKED_MS = 10_000
"""Restatements for replicas come this often at most."""
RESTATE_EVERY_S = 7 * 86_400 / 4
"""The whole cache is restated this often, a quarter of the retention time, so that the log always has a whole one."""
ENGINE_STOP_TIMEOUT_S = 60.0
"""Bound on the engine's stop, longer than its own bounds; then the worker ends without it."""
LOG_AWAY_REPORT_S = 3.0
"""A log that acknowledges nothing for so long is reported as away."""

UNKEPT = "the blocks of its disk tier are not announced, and have no tenants: stop it, and remove its folder"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of one worker."""

    namespace: str
    name: str
    role: str = "decode"
    listen_host: str = "127.0.0.1"
    listen_port: int = 0
    reuse_port: bool = False
    """True if `contrail up` keeps the port while the worker is away."""
    advertise: str = ""
    """`host:port` or `host` that others reach it by; the listening address if empty."""
    partitions: int = 1
    """The number of kv streams; the worker chooses one by its id when it joins, and keeps it."""
    drain_timeout_s: float = DRAIN_TIMEOUT_S
    engine_stall_s: float | None = None
    """Bound on one step of the engine; None chooses it by the kind of the engine."""
    prompts_bytes_max: int = PROMPTS_BYTES_MAX
    """Memory for the token ids of long prompts."""
    restate_every_s: float = RESTATE_EVERY_S
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    """The configured settings; the registry's override them. Used by decode workers with remote prefill."""
    prefill_slots: int = 1
    """Prompts that a prefill worker computes at once."""
    manner: ChatFormat = field(default_factory=ChatFormat)
    """The chat format that front ends use for the model."""
    aliases: tuple[str, ...] = ()
    """Further names of the model for clients (`core.served_names`)."""
    adapter_catalog: Mapping[str, str] = field(default_factory=dict)
    """Folders of the adapters that the group places on some of its workers, by name."""
    adapter_replicas: int = 1
    """The number of workers that are to serve each of these, without `adapter_slots`."""
    adapter_slots: int = 0
    """If above 0, this worker loads so many of these at a time, each at the first request for it."""
    link: LinkOptions = NO_LINK_OPTIONS


class Worker:
    """Lives from `start` until `serve` returns the reason why it ends; `stop` then leaves nothing behind."""

    def __init__(
        self,
        options: WorkerOptions,
        engine: Engine,
        log: EventLog,
        registry: Registry,
        clock: Clock,
        key: DeploymentKey,
    ) -> None:
        self.options = options
        self.namespace = options.namespace
        self.routing = options.routing
        self.engine = engine
        self.role: WorkerRole = AggregatedRole(lambda: self.engine)
        """The worker's part in remote prefill; known once the engine is up."""
        self.mirror: CacheMirror | None = None
        self.pool: PoolKeeper | SharedPool | None = None
        """Of its disk tier, if it has one that can be announced."""
        self.adapters: WorkerAdapters | None = None
        """Known once the engine is up."""
        self.placement: AdapterPlacement | None = None
        """Of a worker with a catalogue of adapters, once the engine is up."""
        self.membership: WorkerMembership | None = None
        self.link = options.link.security(key, options.namespace, clock)
        self.port = WorkerServer(self, self.link, prompts_bytes_max=options.prompts_bytes_max)
        self.draining = GracefulDrain(self.port, options.drain_timeout_s)
        self.address = ""
        self.log = log
        self.registry = registry
        self._broker_clock = BrokerClock(clock)
        self.clock: Clock = self._broker_clock
        self._log_watch = LogWatch(log, self._broker_clock)
        self.key = key
        self._early: list[CacheChange] = []
        self._ending: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._restated_ms = -RESTATE_ASKED_MS
        self.reports: LoadReporter | None = None
        self._totals = Counter[str]()
        self._details: dict[str, object] = {}
        self._files: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"<Worker {self.options.name} at {self.address or 'nowhere yet'}, {self.port.streams} requests>"

    @property
    def ready(self) -> bool:
        """It takes requests, the log's first word of it was stored, and the log takes more."""
        if self.publisher is None or self.port.draining:
            return False
        return self.publisher.kv.n_acked > 0 and not self.publisher.kv.ended

    async def start(self, details: dict[str, object]) -> None:
        """The engine is up, the server open, the worker registered; `details` go into the registry beside the rest.

        If that cannot be, nothing is left of it. CallerError if the port is taken.
        """
        try:
            await self._start(details)
        except BaseException:  # a cancelled start, too, leaves nothing behind
            await self.stop("it could not start", drain=False)
            raise

    async def _start(self, details: dict[str, object]) -> None:
        await self.engine.start(self._on_cache)
        info = self.engine.info
        self.mirror = CacheMirror(info.block_size, self.key.hash_seed, notes_names=info.pool is not None)
        for change in self._early:
            self.mirror.apply(change)
        self._early.clear()
        self.role = self._choose_role()
        self._files = await asyncio.to_thread(tokenizer_files, info.model_path, self.options.manner)
        self.address = await self._open_port()
        transfer = self.engine.transfer
        kv = {"kv": msgspec.to_builtins(transfer.address)} if transfer is not None else {}
        named = {"aliases": self.options.aliases} if self.options.aliases else {}
        sized = {"embedding_size": info.embedding_size} if info.embedding_size else {}
        server: dict[str, object] = {"server": info.server, "rank": info.rank} if info.server else {}
        self._details = {"pid": os.getpid(), "slots": info.slots, **kv, **named, **sized, **server, **details}
        await self._log_watch.start()  # before all times that others read
        self.pool = await self._open_pool()
        self.adapters = WorkerAdapters(self.engine.adapters, self.clock, self._adapters_changed, self._spawn)
        if self.options.adapter_slots:
            await self.adapters.open_slots(self.options.adapter_slots, self.options.adapter_catalog)
        elif self.options.adapter_catalog:
            self.placement = self._new_placement(self.adapters)
        self.membership = self._new_membership(self.mirror)
        self.membership.join()
        if self.pool is not None:
            self.pool.start(self.membership.publisher.id)
        await self._register()
        self.reports = LoadReporter(
            self.engine,
            self._broker_clock,
            publisher=self.current_publisher,
            draining=lambda: self.port.draining,
            totals=lambda: self.totals,
        )
        publisher = self.current_publisher()
        restatements = RestatementSchedule(
            publisher.id, self.clock, self._restate, every_s=self.options.restate_every_s
        )
        stream = kv_stream(publisher.joined.partition)
        for loop in (self.reports.run(), self._check_loop(), self._poll_loop(stream, restatements)):
            self._spawn(loop)
        if self.placement is not None:
            await self.placement.follow(self.registry)
            self._spawn(self.placement.run())
        await self.role.start()

    async def _open_pool(self) -> PoolKeeper | SharedPool | None:
        """The pool of the disk tier. One that cannot be opened is not announced, and serves all the same; CallerError
        if it is shared by workers of another kind."""
        described = self.engine.info.pool
        if described is None:
            return None
        try:
            if described.share is not None:
                place = place_of(described, self.clock)
                return self._shared_pool(described, place, await asyncio.to_thread(place.pool_id))
            folder = PoolFolder(described, self.clock)
            pool, entries = await asyncio.to_thread(folder.open)
        except OSError as error:
            _logger.error("the blocks on the disk are not announced: %s", error)  # noqa: TRY400  # says it all
            return None
        options = self.options
        return PoolKeeper(
            options.namespace,
            self.log,
            self.clock,
            self.key,
            folder,
            entries,
            self._pool_joined(described, pool),
            partitions=options.partitions,
            spawn=self._spawn,
        )

    def _shared_pool(self, described: PoolDescription, place: PoolPlace, pool: str) -> SharedPool:
        return SharedPool(
            self.options.namespace,
            self.log,
            self.registry,
            self.clock,
            self.key,
            described,
            place,
            self._pool_joined(described, pool),
            partitions=self.options.partitions,
            spawn=self._spawn,
        )

    def _pool_joined(self, described: PoolDescription, pool: str) -> PoolJoined:
        """The pool as it will be announced, but for its keeper."""
        info = self.engine.info
        return PoolJoined(
            pool=pool,
            keeper="",
            name=self.options.name,
            model=info.model,
            kind=described.kind.hex(),
            block_size=info.block_size,
        )

    def _choose_role(self) -> WorkerRole:
        if self.options.role == PREFILL:
            if self.engine.transfer is None:
                raise CallerError("a prefill worker's engine must be made to move blocks")
            return PrefillRole(self, self.options.prefill_slots)
        return AggregatedRole(lambda: self.engine) if self.engine.transfer is None else DecodeRole(self)

    async def _open_port(self) -> str:
        listen_host, listen_port = self.options.listen_host, self.options.listen_port
        try:
            host, port = await self.port.open(listen_host, listen_port, reuse_port=self.options.reuse_port)
        except OSError as error:
            raise CallerError(f"cannot listen on {listen_host}:{listen_port} ({error}): choose another port") from error
        self.port.address = advertised_address(self.options.advertise, host, port)
        return self.port.address

    async def serve(self) -> str:
        """Returns when the worker must end, with the reason."""
        return await asyncio.shield(self._ending)

    def leave(self, reason: str) -> None:
        """`serve` returns this reason. Called again, it waits for nothing that is in flight."""
        if self._ending.done():
            self.draining.stop_waiting()
        else:
            self._ending.set_result(reason)

    async def stop(self, reason: str, *, drain: bool = True) -> None:
        """Requests in flight have finished or are handed on, the log and the registry know, the engine is gone.

        Without `drain` they are handed on at once. Every step has a bound, and none keeps the next from being taken.
        """
        self.port.draining = True
        if self.membership is not None:
            self.membership.leaving = True
        if self.reports is not None:
            self.reports.report()
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self._stop_engine)
            last_first.push_async_callback(self.port.close)
            last_first.push_async_callback(self._leave_log, reason)
            last_first.push_async_callback(self._stop_tasks)
            last_first.push_async_callback(self.role.stop)
            if self.membership is not None and drain:
                await self.draining.finish(self._quiet())
            fault, why = ("leaving", "draining") if drain else ("worker", reason)
            await self.draining.end_streams(fault, why)

    async def _stop_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _leave_log(self, reason: str) -> None:
        if self.membership is not None:
            pool = self.pool.leave(reason) if self.pool is not None else asyncio.sleep(0)
            await asyncio.gather(self.membership.leave(reason), pool)

    async def _stop_engine(self) -> None:
        try:
            async with asyncio.timeout(ENGINE_STOP_TIMEOUT_S):
                await self.engine.stop()
        except TimeoutError:
            _logger.error("the engine did not end within %g s", ENGINE_STOP_TIMEOUT_S)  # noqa: TRY400  # says it all

    def describe(self) -> dict[str, Any]:
        """The worker's id and the sizes of its mirror and outboxes, for `/state`."""
        publisher, mirror = self.publisher, self.mirror
        return {
            "worker": publisher.id if publisher else None,
            "name": self.options.name,
            "blocks": mirror.reported if mirror else 0,
            "blocks_by_tier": self.blocks_by_tier,
            "requests": self.port.streams,
            "prompts_kept": {"parts": len(self.port.prompts), "bytes": self.port.prompts.size},
            "appended": publisher.kv.n_acked if publisher else 0,
            "waiting": publisher.kv.depth if publisher else 0,
            "outbox": {"events": publisher.kv.depth, "bytes": publisher.kv.bytes} if publisher else None,
            "log_away_s": round(publisher.kv.away_s, 1) if publisher else 0,
            "dropped": publisher.dropped if publisher else 0,
            "role": self.options.role,
            "clock": self._broker_clock.describe(),
            "link": self.link.describe(),
            "prefill": self.role.describe(),
            "pool": self.pool.describe() if self.pool else None,
            "adapters": [each.id for each in self.adapters.all()] if self.adapters else [],
        }

    @property
    def blocks_by_tier(self) -> dict[str, int]:
        """Blocks that requests can take from its engine's cache, and from its pool; empty before the engine is up."""
        pool = {self.pool.tier: self.pool.blocks} if self.pool else {}
        return self.mirror.reported_by_tier | pool if self.mirror else {}

    def degraded(self) -> dict[str, str]:
        """The services that are away while the worker serves, with details."""
        kv = self.publisher.kv if self.publisher else None
        found = self.link.degraded()
        if self._broker_clock.refused:
            found["clock"] = self._broker_clock.refused
        if kv is not None and kv.away_s >= LOG_AWAY_REPORT_S:
            found["log"] = f"away for {kv.away_s:.0f} s, {kv.depth} events wait"
        return found

    def welcome(self) -> Welcome:
        """The worker's present id, its name and its model."""
        assert self.publisher is not None
        name, model = self.options.name, self.engine.info.model
        return Welcome(
            worker=self.publisher.id,
            name=name,
            model=model,
            keeps_prompts=True,
            changes_adapters=True,
            erases_blocks=True,
        )

    @property
    def publisher(self) -> WorkerPublisher | None:
        """Its publisher under its present id; None before it joined."""
        return None if self.membership is None else self.membership.publisher

    def current_publisher(self) -> WorkerPublisher:
        """The same, once it joined."""
        assert self.publisher is not None
        return self.publisher

    def generate(self, frame: Generate) -> AsyncIterator[Output]:
        """Tokens of a request, as the engine makes them. Declined if its adapter cannot be loaded here."""
        adapter = frame.request.adapter
        slots = None if not adapter or self.adapters is None else self.adapters.slots
        if adapter and slots is not None and slots.announces(adapter):
            return self._generate_in_slot(slots, adapter, frame)
        return self.role.generate(frame)

    async def _generate_in_slot(self, slots: AdapterSlots, adapter: str, frame: Generate) -> AsyncIterator[Output]:
        async with slots.using(adapter):
            generation = cast(AsyncGenerator[Output, None], self.role.generate(frame))
            async with aclosing(generation) as outputs:
                async for output in outputs:
                    yield output

    def on_frame(self, connection: PrefillConnection, frame: FromPrefill) -> None:
        """A frame of a prefill worker goes to the role."""
        self.role.on_frame(connection, frame)

    def on_disconnect(self, connection: PrefillConnection) -> None:
        """A connection broke."""
        self.role.on_disconnect(connection)

    def restate(self) -> None:
        """The whole cache is restated for a replica that lost it, at most every ten seconds."""
        now = self.clock.monotonic_ms()
        if self.publisher is not None and now - self._restated_ms >= RESTATE_ASKED_MS:
            self._restated_ms = now
            self._restate_all()

    def cached(self) -> bytes:
        """The mirror's blocks on the device, sorted."""
        assert self.mirror is not None
        return hashes_to_bytes(sorted(self.mirror.held("device")))

    def files(self) -> dict[str, bytes]:
        """The model files that a front end needs."""
        return self._files

    async def change_adapter(self, frame: LoadAdapter | UnloadAdapter) -> AdapterChanged:
        """The adapter is loaded or unloaded, or the answer has the reason why not."""
        assert self.adapters is not None
        if frame.name in self.options.adapter_catalog:
            return AdapterChanged(fault=PLACED)
        try:
            if isinstance(frame, LoadAdapter):
                changed = await self.adapters.load(frame.name, frame.path)
            else:
                changed = await self.adapters.unload(frame.name)
        except ContrailError as error:
            return AdapterChanged(fault=str(error))
        return AdapterChanged(adapter=changed.id)

    async def pool_content(self) -> PoolContent:
        """The blocks in the pool by tenant, if the worker keeps it."""
        pool = self.pool
        if pool is None:
            return PoolContent(fault=UNKEPT if self.engine.info.disk_counts is not None else "")
        try:
            tenants = await pool.tenants()
        except OSError as error:
            return PoolContent(pool=pool.id, tier=pool.tier, kept=True, fault=f"the pool cannot be read: {error}")
        found = [PoolTenant(*each) for each in tenants or ()]
        return PoolContent(pool=pool.id, tier=pool.tier, kept=tenants is not None, tenants=found)

    async def erase_blocks(self, frame: EraseBlocks) -> BlocksErased:
        """Blocks of the tenant are erased from the pool, or the answer has the reason why not."""
        pool = self.pool
        if pool is None or pool.id != frame.pool:
            return BlocksErased(fault=f"this worker has no pool {frame.pool}")
        try:
            erased = await pool.erase(frame.tenant, unknown=frame.unknown)
        except (OSError, ContrailError) as error:
            return BlocksErased(fault=f"the blocks cannot be erased now: {error}")
        if erased is None:
            return BlocksErased(fault=f"another worker keeps the pool {frame.pool} now")
        return BlocksErased(**erased._asdict())

    def served(self, prompt_tokens: int, cached_tokens: int) -> None:
        """A prompt was computed, and so much of it came from the engine's cache."""
        self._totals.update(requests=1, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)

    @property
    def totals(self) -> dict[str, int]:
        """Counts since the start, by the names of `actors.metrics.worker_metrics.TOTALS`."""
        counts = dict(self._totals, prompts_named=self.port.prompts_named, prompts_asked=self.port.prompts_asked)
        if self.mirror is not None:
            counts |= {"blocks_unindexed": self.mirror.blocks_unindexed, "cache_gaps": self.mirror.gaps}
        if self.pool is not None:
            counts |= self.pool.totals()
        return counts | self.role.totals()

    def _new_placement(self, adapters: WorkerAdapters) -> AdapterPlacement:
        options = self.options
        return AdapterPlacement(
            options.name,
            self.engine.info.model,
            options.adapter_catalog,
            options.adapter_replicas,
            adapters,
            self._register,
        )

    async def _register(self) -> None:
        """The registry has the worker's details as they are now, or will when it is back."""
        assert self.membership is not None
        placed = self.placement.facts() if self.placement is not None else {}
        draining = {"draining": True} if self.port.draining else {}
        await self.membership.register({**self._details, **placed, **draining})

    def _new_membership(self, mirror: CacheMirror) -> WorkerMembership:
        info, options = self.engine.info, self.options
        joined = WorkerJoined(
            name=options.name,
            model=info.model,
            role=options.role,
            engine=info.engine,
            block_size=info.block_size,
            capacity_blocks=info.capacity_blocks,
            context_max=info.context_max,
            address=self.address,
            group=info.group,
            pools=self._pools(),
            assumed=info.assumed or UNSET,
            adapters=(self.adapters.all() if self.adapters else ()) or UNSET,
            adapter_slots=options.adapter_slots or UNSET,
            fetch=info.fetch or UNSET,
        )
        return WorkerMembership(
            options.namespace,
            self.log,
            self.registry,
            self.clock,
            self.key,
            joined,
            mirror,
            partitions=options.partitions,
            jobs_open=lambda: self.role.jobs_open,
            on_rejoin=self._rejoined,
            spawn=self._spawn,
        )

    def _adapters_changed(self, event: AdapterChange, adapters: tuple[Adapter, ...]) -> None:
        assert self.membership is not None
        self.membership.adapters_changed(event, adapters)

    def _pools(self) -> PoolAccess | UnsetType:
        described = self.engine.info.pool
        if self.pool is None or described is None:
            return UNSET
        return PoolAccess(ids=(self.pool.id,), kind=described.kind.hex(), load_blocks=described.load_blocks)

    def _rejoined(self) -> None:
        """The worker goes on under another id."""
        self.role.rejoined()
        if self.pool is not None:
            self.pool.kept_by(self.current_publisher().id)

    def _on_cache(self, change: CacheChange) -> None:
        if self.mirror is None:
            self._early.append(change)  # bounded by what an engine does before it serves
            return
        self._totals["kv_events"] += 1
        events = self.mirror.apply(change)
        named = self.mirror.take_named()
        if self.pool is not None:
            self.pool.note(named)
        if self.publisher is not None:
            self.publisher.publish(events)

    async def _check_loop(self) -> None:
        why = await wait_until_dead(self.engine, self._evidence, self.options.engine_stall_s)
        _logger.error("the engine is dead: %s", why)
        self.leave(f"engine dead: {why}")

    def _evidence(self) -> tuple[int, ...] | None:
        """A value that changes with each step of the engine; None while no request waits for the engine.

        A request with a prompt that is computed elsewhere does not wait for the engine.
        """
        prefills = self.options.role == PREFILL
        waiting = self.role.jobs_open if prefills else self.port.streams - self.role.waits_elsewhere
        return (self.engine.load().steps, self.port.outputs, self._totals["kv_events"]) if waiting > 0 else None

    async def _poll_loop(self, stream: StreamName, restatements: RestatementSchedule) -> None:
        while True:
            try:
                restatements.check((await self._log_watch.poll((ROUTING, stream)))[stream])
            except ContrailError as error:
                _logger.debug("the log cannot be polled: %s", error)
            await asyncio.sleep(min(WORKER_POLL_EVERY_S, self.options.restate_every_s))

    def _restate(self, reason: str) -> None:
        _logger.info("the cache is restated: %s", reason)
        self._restate_all()

    def _restate_all(self) -> None:
        self.current_publisher().restate()
        if self.pool is not None:
            self.pool.restate()

    async def _quiet(self) -> None:
        """Replicas know that we take nothing new, and requests in flight have finished."""
        await self._register()
        await self.role.quiet()
        await self.port.quiet()

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _logger.error("a part of the worker failed", exc_info=task.exception())
            self.leave(f"defect: {task.exception()}")

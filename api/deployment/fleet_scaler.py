"""FleetScaler: the hand of a planner in `contrail up`. It starts and drains workers of one group, to as many as its
target says.

Workers that do not serve are drained first, and among these and the others the highest number is. So a worker that dies
again and again while it starts keeps no place of one that serves. A drained worker hands its requests over, as every
worker that ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from actors.planning.fleet_target import ONLY_GROUP, FleetKeys, TargetFollower
from api.config.deployment_ref import DeploymentRef
from api.deployment.managed_process import ManagedProcess
from api.deployment.shared_devices import SharedDevices
from api.deployment.supervisor import Supervisor
from api.process.planes import open_registry
from core.errors import ContrailError, PeerError
from projections.scaling.scale_settings import ScaleSettings
from streams.registry import Change, Registry

RETRY_S = 1.0
"""Pause after a worker could not be started or drained."""

_logger = logging.getLogger(__name__)


class FleetScaler:
    """Started once, stopped once."""

    def __init__(
        self,
        group: str,
        settings: ScaleSettings,
        workers: list[ManagedProcess],
        beside: list[ManagedProcess],
        supervisor: Supervisor,
        make: Callable[[int], ManagedProcess | None],
        report: Callable[[str], None],
        keys: FleetKeys = ONLY_GROUP,
        devices: SharedDevices | None = None,
    ) -> None:
        """`workers` are those that are supervised, of all groups; those that drain are `beside`. `make` gives the
        worker of a number below `settings.max`; None while the devices that the groups share are taken."""
        self._group = group
        self._follower = TargetFollower(group, settings.max, settings.least, keys)
        self._devices = devices
        self._most = settings.max
        self._workers = workers
        self._beside = beside
        self._supervisor = supervisor
        self._make = make
        self._report = report
        self._changed = asyncio.Event()
        self._drains: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._open = AsyncExitStack()

    def __repr__(self) -> str:
        return f"<FleetScaler of {self._group}: {len(self._own)} workers of {self.goal}>"

    @property
    def goal(self) -> int | None:
        """Number of workers of the newest target; None without one: then the fleet stays as it is."""
        return self._follower.goal

    @property
    def _own(self) -> list[ManagedProcess]:
        """The group's supervised workers."""
        return [part for part in self._workers if part.name.rpartition("-")[0] == self._group]

    async def start(self, connection: DeploymentRef) -> None:
        """Targets in the registry are followed, now and later. Unavailable if the registry is away."""
        await self.follow(await self._open.enter_async_context(open_registry(connection)))

    async def follow(self, registry: Registry) -> None:
        """Targets in this registry are carried out and acknowledged. Unavailable if it is away."""
        self._running = asyncio.create_task(self._run(registry), name="fleet scaler")
        await registry.watch(self._follower.keys.target, self._on_target)

    async def stop(self) -> None:
        """No worker is started or drained any more; those that drain do so on, beside the others."""
        tasks = [*self._drains, *([self._running] if self._running is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._open.aclose()

    def _on_target(self, change: Change) -> None:
        if self._follower.take(change):
            self._changed.set()

    async def _run(self, registry: Registry) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            fault = ""
            try:
                while self.goal is not None and len(self._own) != self.goal:
                    if not await self._one(self.goal):
                        await self._devices_freed()
            except Exception as error:  # after any defect the next target must still be carried out
                fault = str(error) or repr(error)
                self._report(f"the fleet cannot be scaled now: {fault}")
                _logger.warning("scaling failed, trying again", exc_info=not isinstance(error, ContrailError | OSError))
            if not await self._acknowledged(registry, fault) or fault:
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _acknowledged(self, registry: Registry, fault: str) -> bool:
        """True if the planner can know of it; False while the registry is away."""
        try:
            await self._follower.acknowledge(registry, len(self._own), fault)
        except PeerError as error:
            _logger.warning("a target is not acknowledged, trying again: %s", error)
            return False
        return True

    async def _one(self, goal: int) -> bool:
        """One worker more, or one less. False if devices must come free before."""
        async with self._supervisor.changing:
            if len(self._own) < goal:
                return await self._start_worker(goal)
            if len(self._own) > goal:
                await self._drain_worker(goal)
            return True

    async def _devices_freed(self) -> None:
        """A worker of any group has given devices back, or there is another target."""
        assert self._devices is not None
        self._devices.freed.clear()
        waits = [asyncio.create_task(self._devices.freed.wait()), asyncio.create_task(self._changed.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    async def _start_worker(self, goal: int) -> bool:
        taken = {part.name for part in (*self._workers, *self._beside)}
        free = (number for number in range(self._most) if f"{self._group}-{number}" not in taken)
        number = next(free, None)
        if number is None:  # those that drain keep their ports and devices until they are gone
            await asyncio.wait(self._drains, return_when=asyncio.FIRST_COMPLETED)
            return True
        part = self._make(number)
        if part is None:
            return False
        try:
            await part.start()
        except BaseException:  # a cancellation, too: a worker that did not start has no devices
            self._give_back(part)
            raise
        self._workers.append(part)
        self._supervisor.keep(part)
        self._report(f"{part.name} is started: the planner wants {goal}")
        return True

    def _give_back(self, part: ManagedProcess) -> None:
        if self._devices is not None:
            self._devices.give_back(part.name)

    async def _drain_worker(self, goal: int) -> None:
        own = self._own
        ready = await asyncio.gather(*(each.ready() for each in own))  # each bounded by the time of a probe
        serving = {each.name for each, is_ready in zip(own, ready, strict=True) if is_ready}
        part = max(own, key=lambda each: (each.name not in serving, int(each.name.rpartition("-")[2])))
        self._report(f"{part.name} drains: the planner wants {goal}")
        await self._supervisor.release(part)
        self._workers.remove(part)
        self._beside.append(part)
        task = asyncio.create_task(self._stop_worker(part), name=f"drain of {part.name}")
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)

    async def _stop_worker(self, part: ManagedProcess) -> None:
        await part.stop(part.drain_max_s)
        self._beside.remove(part)
        self._give_back(part)

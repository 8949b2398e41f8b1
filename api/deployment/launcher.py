"""The launcher of `contrail up`: it starts all processes of a deployment, keeps them running, and drains them.

Ctrl-C drains, and hurries the second time; SIGHUP and SIGUSR1 restart processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from actors.planning.fleet_target import ONLY_GROUP, FleetKeys
from actors.planning.planner_settings import ACT, SUPERVISOR
from api.config.addresses import Address, join_address
from api.config.data_folder import DataFolder, write_whole
from api.config.deployment_ref import DeploymentRef
from api.config.run_file import DRAINING, READY, STARTING, STOPPED, ProcessEntry, RunFile, read_run, write_targets
from api.config.schema import OFF, Deployment, PlannedGroup
from api.deployment.embedded_servers import EmbeddedServers, ManagedServer
from api.deployment.fleet_scaler import FleetScaler
from api.deployment.managed_process import ManagedProcess, end_leftovers, started_ticks
from api.deployment.preflight import ModelSource, given_key, model_source
from api.deployment.process_specs import (
    ProcessSpec,
    frontend_specs,
    planner_spec,
    visible_gpus,
    worker_address,
    worker_addresses,
    worker_spec,
    worker_specs,
)
from api.deployment.readiness import Progress, wait_until_ready
from api.deployment.rolling_restart import FRONTENDS, RESTARTS, RollingRestart, take_request
from api.deployment.shared_devices import DeviceAssignment
from api.deployment.stream_keeper import StreamKeeper
from api.deployment.supervisor import SupervisedProcess, Supervisor
from api.process.planes import open_planes
from api.server.sockets import close_all, reserve
from core.errors import PeerError
from core.events.kv import PREFILL
from core.keys import DeploymentKey
from streams.jetstream.broker_accounts import REPLICA

FRONTEND_LEAVE_MAX_S = 15.0
"""Time for a front end to append its end to the log, beside its `stop_delay` and `drain_timeout`."""
WORKER_LEAVE_MAX_S = 15.0
"""Time for a worker to append its last events, beside its `drain_timeout`."""
PLANNER_LEAVE_MAX_S = 10.0
"""Time for a planner to give its lead to another."""
RUN_FILE_S = 0.25
"""Interval between updates of `run.json`."""
PUBLIC_FILE = 0o644
"""Mode of `metrics_file`, which a Prometheus of another user reads."""
LOG_FILE_KEPT = ".before"
"""Suffix of a part's output in the run before this one."""


def frontend_drain_max_s(deployment: Deployment) -> float:
    """Maximum time for a front end of this deployment to end."""
    frontend = deployment.frontend
    return frontend.stop_delay_s + frontend.drain_timeout_s + FRONTEND_LEAVE_MAX_S


ENDS = (signal.SIGINT, signal.SIGTERM)


class SignalEvents:
    """Three events, set by signals from `install` on."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.hurry = asyncio.Event()
        self.restart = asyncio.Event()

    def install(self) -> None:
        """Signals set the events, and do nothing else any more.

        SIGHUP ends what has a terminal, because it says that the terminal is gone; it restarts what has none; and
        where it was to be ignored (`nohup`) it still is.
        """
        loop = asyncio.get_running_loop()
        for number in ENDS:
            loop.add_signal_handler(number, self.interrupt)
        loop.add_signal_handler(RESTARTS, self.restart.set)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self.interrupt if has_terminal() else self.restart.set)

    def interrupt(self) -> None:
        """One more signal came that ends us."""
        (self.hurry if self.drain.is_set() else self.drain).set()


def has_terminal() -> bool:
    """True if this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Launcher:
    """Started once, drained once."""

    def __init__(
        self,
        deployment: Deployment,
        data: DataFolder,
        listeners: list[socket.socket],
        progress: Progress,
        key_file: Path | None = None,
    ) -> None:
        self._deployment = deployment
        self._data = data
        self._key_file = key_file
        """The operator's file with the deployment's key; None if the data folder's own counts."""
        self._listeners = listeners
        self._reserved: list[socket.socket] = []
        """Sockets that keep the ports of the workers."""
        self._port: int = listeners[0].getsockname()[1]
        self._progress = progress
        self._servers = EmbeddedServers(deployment.namespace, deployment.log, data)
        self._frontends: list[ManagedProcess] = []
        self._workers: list[ManagedProcess] = []
        self._planners: list[ManagedProcess] = []
        self._scalers: list[FleetScaler] = []
        self._supervisor = Supervisor(progress.write_line)
        self._rolling = RollingRestart(self._supervisor, self._frontends, self._workers, progress.write_line)
        self._state = STARTING
        self._started = datetime.now(UTC)
        self._models: tuple[str, ...] = ()
        self._resolved = deployment
        """With the addresses that the private servers had last."""
        self._written: tuple[RunFile, Deployment] | None = None
        """The content of the files; None if it is not known."""
        self._fault = ""
        """Why they cannot be written."""
        self._writer: asyncio.Task[None] | None = None
        self._streams: StreamKeeper | None = None

    def __repr__(self) -> str:
        return f"<Launcher {self._data.path} {self._state}, {len(self._parts())} parts>"

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models for clients."""
        return self._models

    @property
    def api(self) -> str:
        """The URL of the front ends for clients on this machine."""
        host = self._deployment.frontend.host
        scheme = "https" if self._deployment.frontend.tls else "http"
        return f"{scheme}://{join_address({'0.0.0.0': '127.0.0.1', '::': '::1'}.get(host, host), self._port)}"  # noqa: S104

    async def start(self) -> None:
        """All parts are ready, and kept running; ContrailError says in one sentence what is wrong."""
        await self._end_leftovers()
        take_request(self._data.restart)  # of a run before this one
        key = self._key()
        sources = await asyncio.to_thread(self._model_sources)
        self._writer = asyncio.create_task(self._keep_files(), name="run.json")
        for server in reversed(self._servers.parts):
            await server.start()
        connection = self._connection(key)
        await self._start_streams(connection)
        self._keep_key(key)
        self._plan(sources)
        self._write_files()
        started = [*self._workers, *self._frontends, *self._planners]
        for part in started:
            await part.start()
        await wait_until_ready(started, self._progress)
        self._state = READY
        self._update_files()
        for kept in self._parts():
            self._supervisor.keep(kept)
        for scaler in self._scalers:
            await scaler.start(connection)

    async def restart_on_request(self, requested: asyncio.Event) -> None:
        """Each time the event is set, what was asked for is restarted, or all front ends; cancel it to end."""
        while True:
            await requested.wait()
            requested.clear()
            try:
                asked = take_request(self._data.restart)
                await self._rolling.run(asked.id if asked else "", asked.parts if asked else (FRONTENDS,))
            except Exception as error:  # noqa: BLE001 - a fault in a restart must not end the deployment
                self._progress.write_line(f"the restart failed inside: {error!r}; what runs goes on as it is")

    async def drain(self, hurry: asyncio.Event) -> None:
        """Nothing of it runs any more: first front ends went, then decode workers, those they ask, etcd and NATS."""
        self._state = DRAINING
        close_all(self._listeners)  # the front ends' copies are the last ones now
        asked = [part for part in self._workers if part.spec.role == PREFILL]
        decode = [part for part in self._workers if part.spec.role != PREFILL]
        for scaler in self._scalers:
            await scaler.stop()
        frontends = [*self._planners, *self._frontends, *self._rolling.beside]
        stages: list[Sequence[SupervisedProcess]] = [
            frontends,
            decode,
            asked,
            *([server] for server in self._servers.parts),
        ]
        if self._streams is not None:
            await self._streams.stop()
        try:
            await self._supervisor.drain(stages, hurry)
        finally:
            close_all(self._reserved)
            if self._writer is not None:
                self._writer.cancel()
                self._state = STOPPED
                self._update_files()

    def _key(self) -> DeploymentKey:
        if self._key_file is None:
            return DeploymentKey.load_or_create(self._data.key)
        return given_key(self._key_file, self._data)

    def _keep_key(self, key: DeploymentKey) -> None:
        """The data folder has the key, for the parts and for commands with `--data`: log and registry did not refuse
        it."""
        if not self._data.key.exists() or DeploymentKey.load(self._data.key) != key:
            write_whole(self._data.key, key.to_text().encode())

    def _connection(self, key: DeploymentKey) -> DeploymentRef:
        resolved = msgspec.structs.replace(self._deployment, log=self._servers.addresses())
        return DeploymentRef(deployment=resolved, key=key, key_file=self._key_file or self._data.key)

    async def _start_streams(self, connection: DeploymentRef) -> None:
        """The streams exist, or their making is left to the processes: they have the rights, or the broker is away.

        CallerError if log or registry are another deployment's: then no process starts.
        """
        credentials = connection.deployment.log.credentials
        if credentials is not None and credentials.admin is not None:
            self._streams = StreamKeeper(connection)
            await self._streams.start()
        with suppress(PeerError):
            async with open_planes(connection, REPLICA):
                pass

    async def _end_leftovers(self) -> None:
        """Processes of a killed run are gone; this process holds the folder's lock, so no other run owns them."""
        before = read_run(self._data.run)
        if before is None:
            return
        msgspec.structs.replace(before, state=STARTING).write(self._data.run)  # no longer ready, if it said so
        if ended := await end_leftovers((*before.parts, *before.beside)):
            self._progress.write_line(f"ended what a run before this one had left: {', '.join(ended)}")

    def _model_sources(self) -> list[ModelSource]:
        return [
            model_source(group, self._data.tiny_model, self._progress.write_line) for group in self._deployment.workers
        ]

    def _plan(self, sources: list[ModelSource]) -> None:
        self._models = tuple(dict.fromkeys(source.name for source in sources))
        deployment = self._deployment
        is_hand = deployment.planner_mode == ACT and deployment.planner_hand == SUPERVISOR
        planned = {each.group.name: each for each in deployment.planned_groups} if is_hand else {}
        devices = DeviceAssignment.of(deployment, list(planned.values()), visible_gpus(os.environ))
        for group, source in zip(deployment.workers, sources, strict=True):
            bound_s = group.drain_timeout_s + WORKER_LEAVE_MAX_S
            addresses = [self._reserve(address) for address in worker_addresses(group)]
            specs = worker_specs(group, source, self._data, devices.of_group(group), addresses)
            self._workers += [self._part(spec, bound_s) for spec in specs]
            if group.name in planned:
                self._scalers.append(self._scaler_of(planned[group.name], source, devices, addresses, specs))
        fronts = frontend_specs(deployment, self._data, self._listeners)
        self._frontends += [self._part(spec, frontend_drain_max_s(deployment)) for spec in fronts]
        if deployment.planner_mode != OFF:
            self._planners.append(self._part(planner_spec(deployment, self._data), PLANNER_LEAVE_MAX_S))
        for part in (*self._workers, *self._frontends, *self._planners):
            if part.log.exists():
                part.log.replace(part.log.with_suffix(LOG_FILE_KEPT))

    def _scaler_of(
        self,
        planned: PlannedGroup,
        source: ModelSource,
        devices: DeviceAssignment,
        addresses: list[Address],
        begin: list[ProcessSpec],
    ) -> FleetScaler:
        """The hand that sizes one group, which begins with workers of these addresses and commands."""
        group = planned.group
        reserved = dict(enumerate(addresses))
        """By number, which keeps its port."""
        specs = dict(enumerate(begin))
        """By number, which keeps its devices, too, unless groups share them."""

        def make(number: int) -> ManagedProcess | None:
            if number not in reserved:
                reserved[number] = self._reserve(worker_address(group, number))
            if devices.shared is not None:
                if not devices.shared.take(group, number):
                    return None
                specs.pop(number, None)
            if number not in specs:
                cards = devices.of_group(group)
                specs[number] = worker_spec(group, source, self._data, cards, number, reserved[number])
            return self._part(specs[number], group.drain_timeout_s + WORKER_LEAVE_MAX_S)

        beside, report = self._rolling.beside, self._progress.write_line
        keys = ONLY_GROUP if len(self._deployment.planned_groups) == 1 else FleetKeys.of(group.name)
        return FleetScaler(
            group.name, planned.settings, self._workers, beside, self._supervisor, make, report, keys, devices.shared
        )

    def _reserve(self, address: Address) -> Address:
        """The address, with the port that is kept for its worker from now on."""
        kept = reserve(*address)
        self._reserved.append(kept)
        return Address(*kept.getsockname()[:2])

    def _part(self, spec: ProcessSpec, drain_max_s: float) -> ManagedProcess:
        return ManagedProcess(spec, self._data, drain_max_s)

    def _parts(self) -> list[ManagedServer | ManagedProcess]:
        return [*self._servers.parts, *self._workers, *self._frontends, *self._planners]

    async def _keep_files(self) -> None:
        while True:
            await asyncio.sleep(RUN_FILE_S)
            self._update_files()

    def _update_files(self) -> None:
        """The files are written, or it is said, once, why they cannot be for now: the deployment runs without them."""
        try:
            self._write_files()
        except OSError as error:
            if str(error) != self._fault:
                where = self._data.path
                self._progress.write_line(
                    f"run.json and deployment.json cannot be written in {where}: {error}; trying again"
                )
            self._fault = str(error)
        else:
            self._fault = ""

    def _write_files(self) -> None:
        """`run.json`, `metrics.json` and `deployment.json` are up to date; only changed content is written."""
        if all(server.running for server in self._servers.parts):
            self._resolved = msgspec.structs.replace(self._deployment, log=self._servers.addresses())
        now = (self._run_file(self._resolved), self._resolved)
        if now == self._written:
            return
        self._written = None
        write_whole(self._data.deployment, msgspec.json.encode(self._resolved))
        write_targets(self._data.metrics, now[0])
        now[0].write(self._data.run)
        if self._deployment.metrics_file:
            write_targets(Path(self._deployment.metrics_file).expanduser(), now[0], PUBLIC_FILE)
        self._written = now

    def _run_file(self, deployment: Deployment) -> RunFile:
        return RunFile(
            state=self._state,
            namespace=deployment.namespace,
            data=str(self._data.path),
            pid=os.getpid(),
            started_ticks=started_ticks(os.getpid()),
            started=self._started.isoformat(timespec="seconds").replace("+00:00", "Z"),
            api=self.api,
            models=self._models,
            nats=deployment.log.nats,
            etcd=deployment.log.etcd,
            parts=tuple(_entry(part) for part in self._parts() if part.running),
            beside=tuple(_entry(part) for part in self._rolling.beside if part.running),
            restart=self._rolling.restart,
        )


def _entry(part: ManagedServer | ManagedProcess) -> ProcessEntry:
    assert part.pid is not None
    announcement = part.announcement if isinstance(part, ManagedProcess) else None
    address = (
        part.address if isinstance(part, ManagedServer) else (announcement.address or None) if announcement else None
    )
    return ProcessEntry(
        name=part.name,
        kind=part.kind,
        role=part.spec.role if isinstance(part, ManagedProcess) else None,
        pid=part.pid,
        started_ticks=started_ticks(part.pid),
        id=(announcement.id or None) if announcement else None,
        ops=announcement.ops if announcement else None,
        address=address,
        restarts=part.starts - 1,
        log=str(part.log),
    )

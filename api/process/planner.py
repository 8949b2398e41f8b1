"""The planner process: it sizes the fleet, and serves no request. The hand for Kubernetes is a task in it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from actors.engines.simulated.engine_profile import profile
from actors.engines.simulated.simulated_settings import SimulatedSettings
from actors.metrics.planner_metrics import PlannerMetrics
from actors.planning.forecast_process import check_forecaster
from actors.planning.kubernetes_hand import KubernetesHand
from actors.planning.kubernetes_scale import KubernetesOptions, KubernetesScale
from actors.planning.planner_service import PlannerOptions, PlannerService
from actors.planning.planner_settings import ACT, KUBERNETES
from actors.transport.server_client import ServerAddress
from api.config.deployment_ref import DeploymentRef
from api.config.profile_file import read_profile
from api.config.run_file import announce_if_supervised
from api.config.schema import OFF, SERVICE_ACCOUNT, OperationsSection, WorkerGroup
from api.process.lifecycle import stop_requested
from api.process.operations import OPERATIONS_GRACE_S, operations_server
from api.process.planes import open_planes
from core.clock import SystemClock
from core.errors import CallerError
from core.events.scale import CapacityLearned
from core.readiness import Readiness
from streams.etcd.etcd_registry import EtcdRegistry
from streams.jetstream.broker_accounts import REPLICA

PASS_TOKENS = 8192
"""Prompt tokens of one pass, where the group's `engine_args` do not say `max_num_batched_tokens`."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerArguments:
    """Name and addresses of one planner."""

    name: str
    ops: str
    """Address of the operations listener; empty for a free port."""
    operations: OperationsSection
    home: Path | None
    """Data folder of the `contrail up` that supervises us."""
    profile: Path | None = None
    """The file of a measured profile, instead of the one that the deployment names."""


async def run_planner(connection: DeploymentRef, arguments: PlannerArguments) -> None:
    """Plans until told to end; another planner may lead then. CallerError if the deployment has none, or its hand
    cannot be used."""
    options = planner_options(connection, arguments.name, arguments.profile)
    resource = kubernetes_resource(connection)
    with stop_requested(arguments.home) as ending:
        async with open_planes(connection, REPLICA) as both:
            metrics = PlannerMetrics()
            service = PlannerService(
                options, both.log, both.registry, SystemClock(), connection.key, on_event=metrics.note
            )
            metrics.watch_lead(lambda: service.fence is not None)
            metrics.watch_forecasts(lambda: service.forecasts.failures)
            hand = None if resource is None else _hand(resource, service, both.registry)
            ready, state = partial(_ready, service, hand), partial(_state, service, hand)
            ops = operations_server(arguments.operations, arguments.ops, ready, metrics.registry, state)
            await ops.start()
            running: list[asyncio.Future[Any]] = [asyncio.create_task(service.run(), name="planner")]
            running += [] if hand is None else [asyncio.create_task(hand.run(), name="hand")]
            announce_if_supervised(arguments.home, arguments.name, ops.address)
            try:
                await asyncio.wait([*running, ending], return_when=asyncio.FIRST_COMPLETED)
                if ending.done():
                    _logger.info("ending: %s", ending.result())
            finally:
                for task in running:
                    task.cancel()
                await asyncio.wait(running)
                await service.stop()
                await ops.stop(OPERATIONS_GRACE_S)
            for task in running:
                if not task.cancelled():
                    task.result()


def planner_options(connection: DeploymentRef, name: str, file: Path | None = None) -> PlannerOptions:
    """The options of a planner of this deployment, with the measured profile in the file, or in the one that the
    deployment names. CallerError if the deployment has no planner, or the file is no profile."""
    deployment = connection.deployment
    if deployment.planner_mode == OFF:
        raise CallerError("the deployment has no planner: give its file `planner: {mode: advise}`, or `act`")
    group = deployment.planned_group
    check_forecaster(deployment.scale_settings.predictor)
    return PlannerOptions(
        namespace=connection.namespace,
        name=name,
        group=group.name,
        model=group.client_name,
        settings=deployment.scale_settings,
        acts=deployment.planner_mode == ACT,
        profile=_profile(group, file or (Path(deployment.planner_profile) if deployment.planner_profile else None)),
        pass_tokens=int(group.engine_args.get("max_num_batched_tokens") or PASS_TOKENS),
        devices=group.gpus,
    )


def _profile(group: WorkerGroup, file: Path | None) -> CapacityLearned | None:
    """The speed that was measured, or that of a simulated engine; that of others is learned."""
    if file is not None:
        return read_profile(file).capacity(group.gpus)
    if group.engine != "simulated":
        return None
    given: dict[str, Any] = {"model_path": group.model} | group.engine_args
    return profile(SimulatedSettings.parse(given))


def kubernetes_resource(connection: DeploymentRef) -> KubernetesOptions | None:
    """The resource that a planner that acts sizes; None if another hand carries its targets out. CallerError if the
    namespace is not given, and this is no pod."""
    deployment = connection.deployment
    if deployment.planner_mode != ACT or deployment.planner_hand != KUBERNETES:
        return None
    section = deployment.kubernetes
    return KubernetesOptions(
        kind=section.kind,
        name=section.name,
        namespace=section.namespace or _own_namespace(),
        server=ServerAddress.parse(section.server),
        token_file=Path(section.token_file).expanduser(),
        authority=Path(section.ca_file).expanduser() if section.ca_file else None,
    )


def _own_namespace() -> str:
    file = Path(SERVICE_ACCOUNT) / "namespace"
    try:
        return file.read_text().strip()
    except OSError as error:
        raise CallerError(f"planner.kubernetes.namespace: give it, since this is no pod: {error}") from error


def _hand(resource: KubernetesOptions, service: PlannerService, registry: EtcdRegistry) -> KubernetesHand:
    it = service.options

    def may_act() -> bool:
        return service.fence is not None and service.settings.acts

    return KubernetesHand(KubernetesScale(resource), registry, it.group, it.settings.max, may_act, it.settings.least)


def _state(service: PlannerService, hand: KubernetesHand | None) -> dict[str, Any]:
    return service.describe() | ({} if hand is None else {"hand": hand.describe()})


def _ready(service: PlannerService, hand: KubernetesHand | None) -> Readiness:
    if service.fault:
        return Readiness(ready=False, waiting_for={"lead": service.fault})
    faults = {"hand": "" if hand is None else hand.fault, "forecast": service.forecasts.fault}
    return Readiness(ready=True, waiting_for={}, degraded={part: fault for part, fault in faults.items() if fault})

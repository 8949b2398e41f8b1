"""The planner process: it sizes the fleet, and serves no request."""

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
from actors.planning.planner_service import PlannerOptions, PlannerService
from actors.planning.planner_settings import ACT
from api.config.deployment_ref import DeploymentRef
from api.config.run_file import announce_if_supervised
from api.config.schema import OFF, OperationsSection, WorkerGroup
from api.process.lifecycle import stop_requested
from api.process.operations import OPERATIONS_GRACE_S, operations_server
from api.process.planes import open_planes
from core.clock import SystemClock
from core.errors import CallerError
from core.events.scale import CapacityLearned
from core.readiness import Readiness
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


async def run_planner(connection: DeploymentRef, arguments: PlannerArguments) -> None:
    """Plans until told to end; another planner may lead then. CallerError if the deployment has none."""
    options = planner_options(connection, arguments.name)
    with stop_requested(arguments.home) as ending:
        async with open_planes(connection, REPLICA) as both:
            metrics = PlannerMetrics()
            service = PlannerService(
                options, both.log, both.registry, SystemClock(), connection.key, on_event=metrics.note
            )
            metrics.watch_lead(lambda: service.fence is not None)
            ready = partial(_ready, service)
            ops = operations_server(arguments.operations, arguments.ops, ready, metrics.registry, service.describe)
            await ops.start()
            running = asyncio.create_task(service.run(), name="planner")
            announce_if_supervised(arguments.home, arguments.name, ops.address)
            try:
                await asyncio.wait((running, ending), return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    _logger.info("ending: %s", ending.result())
            finally:
                running.cancel()
                await asyncio.wait((running,))
                await service.stop()
                await ops.stop(OPERATIONS_GRACE_S)
            if not running.cancelled():
                running.result()


def planner_options(connection: DeploymentRef, name: str) -> PlannerOptions:
    """The options of a planner of this deployment; CallerError if its file has none."""
    deployment = connection.deployment
    if deployment.planner_mode == OFF:
        raise CallerError("the deployment has no planner: give its file `planner: {mode: advise}`, or `act`")
    group = deployment.planned_group
    return PlannerOptions(
        namespace=connection.namespace,
        name=name,
        group=group.name,
        model=group.client_name,
        settings=deployment.scale_settings,
        acts=deployment.planner_mode == ACT,
        profile=_profile(group),
        pass_tokens=int(group.engine_args.get("max_num_batched_tokens") or PASS_TOKENS),
        devices=group.gpus,
    )


def _profile(group: WorkerGroup) -> CapacityLearned | None:
    """The speed of a simulated engine; that of others is learned."""
    if group.engine != "simulated":
        return None
    given: dict[str, Any] = {"model_path": group.model} | group.engine_args
    return profile(SimulatedSettings.parse(given))


def _ready(service: PlannerService) -> Readiness:
    if service.fault:
        return Readiness(ready=False, waiting_for={"lead": service.fault})
    return Readiness(ready=True, waiting_for={})

"""`contrail planner`: one planner, which sizes the fleet of a deployment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import uvloop

from actors.planning.planner_settings import ACT
from api.cli.options import OPS_OPTION, OPS_TOKEN_OPTION, name_option, operations_section
from api.config.deployment_ref import DeploymentRef, deployment_options
from api.config.schema import OFF
from api.deployment.process_specs import SUPERVISED
from api.process.logging_setup import configure_logging
from api.process.planes import ensure_streams, open_log
from api.process.planner import PlannerArguments, run_planner
from core.errors import CallerError
from streams.jetstream.broker_accounts import ADMIN


@click.command()
@deployment_options
@name_option("planner-0")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="[MODEL=]FILE",
    help="Begin with the speed that `contrail profile` measured; with several models, one for each, "
    "and of prefill workers that of `prefill` or `MODEL/prefill`.  "
    "[default: the file's planner.profile]",
)
@click.option(
    "--advise",
    is_flag=True,
    help="Decide and tell, and order nothing, also where the deployment's file has no planner.",
)
@OPS_OPTION
@OPS_TOKEN_OPTION
@click.option(SUPERVISED, is_flag=True, hidden=True)
def planner(
    connection: DeploymentRef,
    supervised: bool,
    name: str,
    profiles: tuple[str, ...],
    advise: bool,
    ops: str,
    ops_token: str | None,
) -> None:
    """Start one planner: it decides how many workers the deployment is to have. `contrail up` starts one by itself.

    \b
    contrail planner --data data --name planner-1
    contrail planner -f prod.yaml --key-file key --ops 10.0.0.2:9091
    contrail planner --data data --name planner-1 --profile qwen.json
    contrail planner --data data --advise       the file has no planner

    The section `planner` of the deployment's file says whether it acts, and within which bounds. Of several planners
    one leads; the others stand by. `contrail scale` shows what it decides.
    """
    configure_logging()
    if advise:
        connection = uvloop.run(advising(connection))
    arguments = PlannerArguments(
        name=name,
        ops=ops,
        operations=operations_section(connection.deployment.operations, ops_token),
        home=connection.data if supervised else None,
        profiles=_profiles(profiles, {each.section.label for each in connection.deployment.planned_groups}),
    )
    uvloop.run(run_planner(connection, arguments))


async def advising(connection: DeploymentRef) -> DeploymentRef:
    """The deployment with a planner that orders nothing; the log has the stream for its decisions. CallerError if the
    deployment's planners may order workers: while this one led, no worker would be ordered."""
    mode = connection.deployment.planner_mode
    if mode == ACT:
        raise CallerError(
            "--advise: the deployment's file lets its planners act; `contrail scale set mode advise` stops the orders "
            "of all of them"
        )
    if mode == OFF:
        connection = replace(connection, deployment=connection.deployment.with_planner())
        async with open_log(connection, ADMIN) as log:  # front ends and planners may not make a stream
            await ensure_streams(log, connection, ADMIN)
    return connection


def _profiles(given: tuple[str, ...], labels: set[str]) -> dict[str, Path]:
    """Files by the label of a fleet; decode workers of the only model have none. A label may have an equals sign, and
    so may a file's name."""
    found: dict[str, Path] = {}
    for each in given:
        label = next((name for name in labels if name and each.startswith(f"{name}=")), "")
        found[label] = Path(each.removeprefix(f"{label}=") if label else each)
    return found

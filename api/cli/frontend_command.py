"""`contrail frontend`: one front end, the API and its router in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from api.cli.options import OPS_OPTION, OPS_TOKEN_OPTION, name_option, operations_section
from api.config.addresses import split_address
from api.config.deployment_ref import DeploymentRef, deployment_options
from api.config.schema import DRAIN_TIMEOUT_MAX_S, STOP_DELAY_MAX_S, FrontendSection, FrontendTls, RouteSection
from api.debug.page import DebugPage
from api.deployment.process_specs import SUPERVISED
from api.process.frontend import FrontendArguments, serve_frontend
from api.process.logging_setup import configure_logging
from core.errors import CallerError


@click.command()
@deployment_options
@name_option("frontend-0")
@click.option(
    "--listen",
    help="HOST:PORT of the API. Metrics and state are elsewhere: --ops.  [default: the deployment's, 127.0.0.1:8000]",
)
@OPS_OPTION
@OPS_TOKEN_OPTION
@click.option("--advertise", help="Host under which others reach it.  [default: the deployment's, else --listen's]")
@click.option("--shared-port", is_flag=True, help="Other front ends listen on the same port (SO_REUSEPORT).")
@click.option("--fd", type=int, metavar="N", help="Accept on the open socket of this number.  [default: LISTEN_FDS]")
@click.option("--neighbour-fd", type=int, multiple=True, hidden=True)
@click.option(
    "--stop-delay",
    type=click.IntRange(0, STOP_DELAY_MAX_S),
    metavar="S",
    help="Told to end, be not ready for so long before taking no more requests.  [default: the deployment's, 0]",
)
@click.option(
    "--drain-timeout",
    type=click.IntRange(0, DRAIN_TIMEOUT_MAX_S),
    metavar="S",
    help="Then let answers that have begun go on for so long.  [default: the deployment's, 30]",
)
@click.option(
    "--journal",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="CONTRAIL_JOURNAL",
    help="Folder for decisions that the log does not have yet.  [default: journal/ in the data folder]",
)
@click.option("--keys", metavar="FILE", help="API keys (`contrail keys`).  [default: the deployment's, else none]")
@click.option("--tls-cert", metavar="FILE", help="Speak HTTPS with this certificate (PEM).")
@click.option("--tls-key", metavar="FILE", help="Its key, if that is in another file.")
@click.option(
    "--route-token",
    metavar="FILE",
    help="Route for proxies that send the token in this file, at /v1/route.  [default: the deployment's, else off]",
)
@click.option(SUPERVISED, is_flag=True, hidden=True)
def frontend(
    connection: DeploymentRef,
    supervised: bool,
    tls_cert: str | None,
    tls_key: str | None,
    route_token: str | None,
    name: str,
    ops: str,
    ops_token: str | None,
    shared_port: bool,
    fd: int | None,
    neighbour_fd: tuple[int, ...],
    journal: Path | None,
    **flags: Any,
) -> None:
    """Start one front end: the OpenAI API with a router of its own, rebuilt from the log.

    \b
    contrail frontend --data data --name frontend-1 --listen 127.0.0.1:8001
    contrail frontend -f prod.yaml --key-file key --name edge-0 --listen 10.0.0.2:8000 --ops 10.0.0.2:9090

    Addresses alone (--nats, --etcd, --namespace) find the log and not the deployment's file: then no API key is asked
    for without --keys, and decisions use the live settings and the defaults.

    With --fd, or started by systemd's socket activation, the socket outlives the front end: while one follows the
    other, clients wait for a moment, and none is refused.
    """
    configure_logging()
    if tls_key and not tls_cert:
        raise CallerError("--tls-key: give --tls-cert with it, the certificate whose key it is")
    flags["tls"] = FrontendTls(cert=tls_cert, key=tls_key) if tls_cert else None
    flags["route"] = _route_section(connection.deployment.frontend.route, route_token)
    arguments = FrontendArguments(
        name=name,
        ops=ops,
        operations=operations_section(connection.deployment.operations, ops_token),
        shared_port=shared_port,
        fd=fd,
        neighbour_fd=neighbour_fd,
        home=connection.data if supervised else None,
        journal=journal,
        section=_section(connection.deployment.frontend, flags),
    )
    uvloop.run(serve_frontend(connection, arguments, DebugPage(connection)))


def _route_section(configured: RouteSection | None, token_file: str | None) -> RouteSection | None:
    """The deployment's section of routing for proxies, with the file of --route-token if that is given."""
    if token_file is None:
        return configured
    if configured is None:
        return RouteSection(token_file=token_file)
    return msgspec.structs.replace(configured, token_file=token_file)


def _section(configured: FrontendSection, flags: dict[str, Any]) -> FrontendSection:
    """The deployment's section of front ends, with the flags given on the command line."""
    delays = {name: f"{flags[name]}s" for name in ("stop_delay", "drain_timeout") if flags[name] is not None}
    more = {name: flags[name] for name in ("listen", "advertise", "keys", "tls", "route") if flags[name]}
    try:
        split_address(more.get("listen", configured.listen))
    except ValueError as error:
        raise CallerError(f"--listen: {error}") from error
    return msgspec.structs.replace(configured, **more, **delays)

"""`contrail nats`: accounts for the roles at a NATS of the operator's own, and the streams there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click

from api.cli.main import CommandGroup
from api.config.data_folder import write_whole
from api.config.deployment_ref import DeploymentRef, deployment_options
from api.config.loading import load
from api.process.planes import ensure_streams, open_log
from core.errors import CallerError
from streams.jetstream.broker_accounts import ADMIN, ROLES, broker_accounts
from streams.jetstream.nkey import Nkey

CONFIGURATION = "accounts.conf"


@click.group(cls=CommandGroup)
def nats() -> None:
    """Set up a NATS of your own, with an account for each role; docs/deploy.md, Roles at NATS.

    \b
    contrail nats accounts -f prod.yaml nats-accounts
    contrail nats streams -f prod.yaml --key-file key
    """


@nats.command()
@click.option("-f", "--file", type=click.Path(path_type=Path), help="Deployment file: namespace and kv_partitions.")
@click.option("--namespace", help="The deployment's name in the log.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def accounts(file: Path | None, namespace: str | None, folder: Path) -> None:
    """Write FOLDER/accounts.conf, and the seed of each role's nkey beside it; seeds that exist are kept.

    \b
    contrail nats accounts -f prod.yaml nats-accounts
    """
    deployment = load(file, {"namespace": namespace}).deployment
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        users = {role: [{"nkey": Nkey.load_or_create(folder / f"{role}.nk").public}] for role in ROLES}
        found = {"accounts": broker_accounts(deployment.namespace, deployment.log.kv_partitions, users)}
        write_whole(folder / CONFIGURATION, json.dumps(found, indent=1).encode() + b"\n")
    except OSError as error:
        raise CallerError(f"{folder} cannot be written: {error.strerror}") from error
    click.echo(f"{folder / CONFIGURATION}: include it in the configuration of nats-server, for `authorization`.")
    for role in ROLES:
        click.echo(f"{folder / f'{role}.nk'}: the secret of the {role}; give it to the machines of that role alone.")


@nats.command()
@deployment_options
def streams(connection: DeploymentRef) -> None:
    """Make the streams that are missing, by the credentials of the admin. `contrail up` does so by itself.

    \b
    contrail nats streams -f prod.yaml --key-file key
    """
    asyncio.run(_make_streams(connection))
    for name in connection.topology.names():
        click.echo(f"stream {name} exists")


async def _make_streams(connection: DeploymentRef) -> None:
    async with open_log(connection, ADMIN) as log:
        await ensure_streams(log, connection, ADMIN)

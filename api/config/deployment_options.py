"""Command-line options that say which deployment a command is about."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from api.config.deployment_ref import DEFAULT_DATA, DeploymentRef, find_by_address, find_by_data_folder
from api.config.loading import urls
from core.errors import CallerError

OPTIONS = (
    click.option("--data", type=click.Path(path_type=Path), help="Data folder of a deployment that runs here."),
    click.option("-f", "--file", type=click.Path(path_type=Path), help="Deployment file with the addresses."),
    click.option(
        "--nats", help="NATS URLs, with commas between them; users and passwords: in the file, or CONTRAIL_NATS_USER, …"
    ),
    click.option("--etcd", help="HOST:PORT of etcd."),
    click.option("--namespace", help="The deployment's name in the log."),
    click.option(
        "--key-file", type=click.Path(path_type=Path), envvar="CONTRAIL_KEY_FILE", help="The deployment's key."
    ),
)


def deployment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command has the options above, and gets a `DeploymentRef` as its argument `connection`."""

    @wraps(command)
    def connected(
        *args: Any,
        data: Path | None,
        file: Path | None,
        nats: str | None,
        etcd: str | None,
        namespace: str | None,
        key_file: Path | None,
        **rest: Any,
    ) -> Any:
        return command(*args, connection=resolve_deployment(data, file, nats, etcd, namespace, key_file), **rest)

    for option in reversed(OPTIONS):
        connected = option(connected)
    return connected


def resolve_deployment(
    data: Path | None,
    file: Path | None,
    nats: str | None,
    etcd: str | None,
    namespace: str | None,
    key_file: Path | None,
) -> DeploymentRef:
    """By address if any address is given, else by data folder."""
    flags = {
        "log.nats": urls(nats) if nats else None,
        "log.etcd": urls(etcd) if etcd else None,
        "namespace": namespace,
    }
    elsewhere = file is not None or any(flags.values())
    if data is not None and elsewhere:
        raise CallerError("give either --data or addresses (--nats, --etcd, --namespace, --file), not both")
    if elsewhere or (data is None and "CONTRAIL_NATS" in os.environ):
        return find_by_address(file, flags, key_file)
    return find_by_data_folder(data or Path(os.environ.get("CONTRAIL_DATA", DEFAULT_DATA)))

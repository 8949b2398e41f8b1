"""The deployment that a command is about, with all that it takes to be let in.

--data DIR                                        a deployment that `contrail up` runs on this machine
--nats URL --etcd HOST:PORT --namespace NS --key-file FILE      any other; `-f FILE` and CONTRAIL_… say the same
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import click

from actors.transport.handshake import LinkOptions
from actors.transport.link_tls import LinkTls
from api.config.data_folder import DataFolder
from api.config.loading import load, urls
from api.config.run_file import STOPPED, read_run
from api.config.running_deployments import data_folder_of
from api.config.schema import OFF, Deployment, EtcdAccess, NatsLogin, OperationsSection, RouteSection
from api.config.units import duration_s, size_bytes
from core.clock import Clock
from core.errors import CallerError
from core.keys import DeploymentKey
from streams.etcd.etcd_credentials import EtcdCredentials
from streams.jetstream.broker_accounts import API
from streams.jetstream.nats_credentials import NatsCredentials
from streams.key_check import CheckedKey
from streams.topology import Topology

OLD_HANDSHAKE_MAX_S = 24 * 3600
"""Bound on the time for which a process that starts admits the handshake of the version before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentRef:
    """A deployment, and all that it takes to be let in."""

    deployment: Deployment
    key: DeploymentKey
    data: Path | None = None
    """The data folder, if it is a deployment on this machine."""
    words: tuple[str, ...] = field(default=(), compare=False)
    """The options that name this deployment to another command of ours."""
    key_file: Path | None = field(default=None, compare=False)
    """The place of the key, for sentences."""

    @property
    def namespace(self) -> str:
        """The deployment's name in the log and in the registry."""
        return self.deployment.namespace

    @property
    def checked_key(self) -> CheckedKey:
        """The key as streams and registry check it."""
        return CheckedKey(self.key, self.namespace, self.key_file)

    @property
    def topology(self) -> Topology:
        """The streams of the deployment's log: partitions, copies and bounds."""
        log = self.deployment.log
        return Topology(
            kv_partitions=log.kv_partitions,
            replicas=log.replicas,
            max_age_s=duration_s(log.max_age),
            max_bytes=size_bytes(log.max_bytes),
            is_planned=self.deployment.planner_mode != OFF,
        )

    @property
    def restate_every_s(self) -> float:
        """Interval in which each process restates its whole state: a quarter of the time that the log keeps events."""
        return self.topology.max_age_s / 4

    @property
    def snapshot_every_s(self) -> int | None:
        """Interval between snapshots; None for never."""
        every = self.deployment.log.snapshot_every
        return None if every == OFF else duration_s(every)

    def link(self, clock: Clock) -> LinkOptions:
        """The options for connections between parts; errors as of `link_options`."""
        return link_options(self.deployment, clock)

    @property
    def operations_token(self) -> str | None:
        """The token for metrics and state; None if they ask for none."""
        return operations_token(self.deployment.operations)

    @property
    def nats(self) -> list[str]:
        """URLs of the broker's servers."""
        return list(self.deployment.log.nats)

    def nats_credentials(self, role: str) -> NatsCredentials | None:
        """Those of the role (`streams.jetstream.broker_accounts`); None if the broker lets everybody in."""
        given = self.deployment.log.credentials
        return nats_credentials(given and given.login(role))

    @property
    def etcd(self) -> str:
        """HOST:PORT of the registry."""
        return self.deployment.log.etcd[0]

    @property
    def etcd_credentials(self) -> EtcdCredentials | None:
        """None if the registry lets everybody in."""
        return etcd_credentials(self.deployment.log.etcd_credentials)


def find_by_data_folder(data: Path) -> DeploymentRef:
    """The deployment that runs with this data folder; CallerError if none does."""
    folder = DataFolder(data.absolute())
    run = read_run(folder.run)
    if run is None or run.state == STOPPED or not folder.deployment.exists():
        raise CallerError(
            f"no deployment runs with the data folder {data}: start it with `contrail up --data {data}`, "
            "name another folder with --data, or give -f FILE or --nats and --etcd, and --key-file"
        )
    # what the environment says went into the deployment when it was started
    deployment = load(folder.deployment, environment={}).deployment
    if not deployment.log.nats or not deployment.log.etcd:
        raise CallerError(f"the deployment with the data folder {data} is only just starting: try again in a second")
    words = ("--data", str(folder.path))
    key = DeploymentKey.load(folder.key)
    return DeploymentRef(deployment=deployment, key=key, data=folder.path, words=words, key_file=folder.key)


def find_by_address(file: Path | None, flags: Mapping[str, Any], key_file: Path | None) -> DeploymentRef:
    """The deployment at the addresses given by file, environment and flags; CallerError says what is missing."""
    deployment = load(file, flags).deployment
    if not deployment.log.nats or not deployment.log.etcd:
        raise CallerError(_no_addresses(file))
    if key_file is None:
        raise CallerError("give --key-file FILE: a copy of `key` from the deployment's data folder")
    given: dict[str, object] = {
        "--file": file.absolute() if file else None,
        "--nats": ",".join(flags.get("log.nats") or ()),
        "--etcd": ",".join(flags.get("log.etcd") or ()),
        "--namespace": flags.get("namespace"),
        "--key-file": key_file.absolute(),
    }
    words = tuple(word for option, value in given.items() if value for word in (option, str(value)))
    return DeploymentRef(deployment=deployment, key=DeploymentKey.load(key_file), words=words, key_file=key_file)


def _no_addresses(file: Path | None) -> str:
    """The error text if neither file nor flags name the addresses of both planes."""
    if file is None:
        return (
            "which deployment? Give --data DIR, or -f FILE that has log.nats and log.etcd, or --nats URL and "
            "--etcd HOST:PORT; with addresses also --key-file FILE"
        )
    return (
        f"{file} has no addresses (log.nats and log.etcd): give --data DIR, the folder of its `contrail up`, without "
        f"-f; or -f {file} with --nats URL, --etcd HOST:PORT and --key-file FILE"
    )


def link_options(deployment: Deployment, clock: Clock) -> LinkOptions:
    """The section `link` as parts take it. CallerError if a file of `link.tls` cannot be used, or the old handshake
    is to be admitted for longer than OLD_HANDSHAKE_MAX_S from now."""
    tls, until = deployment.link.tls, deployment.link.old_handshake_until
    until_ms = 0 if until is None else int(until.timestamp() * 1000)
    if until_ms > clock.wall_ms() + OLD_HANDSHAKE_MAX_S * 1000:
        raise CallerError(
            f"link.old_handshake_until: {until} is too late; {OLD_HANDSHAKE_MAX_S // 3600} h from now is the most"
        )
    return LinkOptions(
        tls=None if tls is None else LinkTls(*(Path(each).expanduser() for each in (tls.cert, tls.key, tls.ca))),
        old_handshake_until_ms=until_ms,
    )


def nats_credentials(given: NatsLogin | None) -> NatsCredentials | None:
    """The section as the log takes it."""
    if given is None:
        return None
    tls = given.tls
    return NatsCredentials(
        user=given.user,
        password=given.password,
        token=given.token,
        creds_file=_path(given.creds),
        nkey_file=_path(given.nkey),
        api_prefix=given.api_prefix or API,
        tls_ca=_path(tls.ca if tls else None),
        tls_cert=_path(tls.cert if tls else None),
        tls_key=_path(tls.key if tls else None),
    )


def etcd_credentials(given: EtcdAccess | None) -> EtcdCredentials | None:
    """The section as the registry takes it."""
    if given is None:
        return None
    tls = given.tls
    return EtcdCredentials(
        user=given.user,
        password=given.password,
        ca=_path(tls.ca if tls else None),
        cert=_path(tls.cert if tls else None),
        key=_path(tls.key if tls else None),
    )


TOKEN_BYTES_MAX = 4096
"""A longer file is no token."""
REMEDY = "write one with `openssl rand -hex 32`"


def operations_token(section: OperationsSection) -> str | None:
    """The token in the section's file; None without one. CallerError names the file's fault."""
    file = _path(section.token_file)
    return None if file is None else _token_in(file, "operations token")


def route_token(section: RouteSection) -> str:
    """The token in the section's file. CallerError names the file's fault."""
    return _token_in(Path(section.token_file).expanduser(), "route token")


def operator_token(token_file: str) -> str:
    """The token in the file. CallerError names the file's fault."""
    return _token_in(Path(token_file).expanduser(), "operator token")


def _token_in(file: Path, name: str) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(TOKEN_BYTES_MAX + 1)
        token = content.decode("ascii").strip()
    except OSError as error:
        raise CallerError(f"cannot read the {name} in {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CallerError(f"the {name} in {file} is not ASCII: {REMEDY}") from error
    if len(content) > TOKEN_BYTES_MAX:
        raise CallerError(f"the {name} in {file} is longer than {TOKEN_BYTES_MAX} bytes: {REMEDY}")
    if len(token.split()) != 1:
        raise CallerError(f"the {name} in {file} is not one word: {REMEDY}")
    return token


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser() if text else None


OPTIONS = (
    click.option(
        "--data",
        type=click.Path(path_type=Path),
        help="Data folder of a deployment that runs here.  [default: data, else that of the only one]",
    ),
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
    return find_by_data_folder(data_folder_of(data))

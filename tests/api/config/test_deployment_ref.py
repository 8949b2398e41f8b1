"""How commands find a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from api.config.data_folder import DataFolder, FolderLock, write_whole
from api.config.deployment_ref import DeploymentRef, deployment_options, find_by_data_folder, nats_credentials
from api.config.run_file import READY, STOPPED, RunFile
from api.config.schema import Deployment, EtcdAccess, LogCredentials, LogSection, Tls
from api.process.planes import named_remedy
from core.errors import CallerError, Refused
from core.keys import DeploymentKey
from streams.jetstream.broker_accounts import WORKER

DEPLOYMENT = Deployment(
    namespace="prod",
    log=LogSection(
        nats=("nats://127.0.0.1:1",),
        etcd=("127.0.0.1:2",),
        credentials=LogCredentials(user="u", password="p"),
        etcd_credentials=EtcdAccess(user="root", password="q"),
        max_bytes="1GiB",
    ),
    routing={"policy": "random"},
)


def running(folder: Path, state: str = READY) -> DataFolder:
    """A data folder as `contrail up` leaves it while it runs."""
    data = DataFolder(folder / "data")
    data.make()
    DeploymentKey.load_or_create(data.key)
    write_whole(data.deployment, msgspec.json.encode(DEPLOYMENT), mode=0o600)
    run = RunFile(
        state=state, namespace="prod", data=str(data.path), pid=1, started="", api="", models=(), nats=(), etcd=()
    )
    run.write(data.run)
    return data


def asked(*arguments: str, **environment: str) -> DeploymentRef:
    """The connection that a command gets which is called so."""
    found: list[DeploymentRef] = []

    @click.command()
    @deployment_options
    def command(connection: DeploymentRef) -> None:
        found.append(connection)

    names = ("CONTRAIL_DATA", "CONTRAIL_NATS", "CONTRAIL_ETCD", "CONTRAIL_KEY_FILE")
    env: dict[str, Any] = dict.fromkeys(names) | environment
    result = CliRunner().invoke(command, list(arguments), env=env)
    if result.exception is not None:
        raise result.exception
    return found[0]


def test_a_data_folder_says_everything(tmp_path: Path) -> None:
    """With --data, addresses, credentials, key and settings are those of the deployment that runs there."""
    data = running(tmp_path)

    connection = asked("--data", str(data.path), CONTRAIL_NATS="nats://elsewhere:1", CONTRAIL_NAMESPACE="other")

    assert connection.deployment == DEPLOYMENT
    assert (connection.namespace, connection.nats, connection.etcd) == ("prod", ["nats://127.0.0.1:1"], "127.0.0.1:2")
    assert DeploymentKey.load(data.key) == connection.key
    found = connection.nats_credentials(WORKER)
    assert found is not None
    assert (found.user, found.password) == ("u", "p")
    assert connection.etcd_credentials is not None
    assert (connection.etcd_credentials.user, connection.etcd_credentials.password) == ("root", "q")
    assert connection.topology.max_bytes == 2**30
    assert data.path == connection.data


def test_addresses_and_a_key_do_as_well(tmp_path: Path) -> None:
    """From another machine: --nats, --etcd, --namespace and a copy of the key."""
    key = running(tmp_path).key
    addresses = ("--nats", "nats://a:1, nats://b:1", "--etcd", "e:2", "--namespace", "prod")

    connection = asked(*addresses, "--key-file", str(key))

    assert connection.nats == ["nats://a:1", "nats://b:1"]
    assert (connection.etcd, connection.namespace, connection.nats_credentials(WORKER)) == ("e:2", "prod", None)
    assert connection == asked(
        "--namespace", "prod", "--key-file", str(key), CONTRAIL_NATS="nats://a:1,nats://b:1", CONTRAIL_ETCD="e:2"
    )
    with pytest.raises(CallerError, match="give --key-file FILE"):
        asked(*addresses)
    with pytest.raises(CallerError, match=r"which deployment.*, or -f FILE .*--key-file FILE"):
        asked("--nats", "nats://a:1")
    file = tmp_path / "plain.yaml"
    file.write_text("version: 1\n")
    with pytest.raises(CallerError, match=r"plain.yaml has no addresses .*--data DIR.*--key-file FILE"):
        asked("-f", str(file))
    with pytest.raises(CallerError, match="not both"):
        asked("--data", "d", "--nats", "nats://a:1")


def test_a_deployment_that_does_not_run_is_not_found(tmp_path: Path) -> None:
    """No folder, a stopped run: one sentence says how to start it."""
    with pytest.raises(CallerError, match="no deployment runs with the data folder"):
        find_by_data_folder(tmp_path / "nothing")
    with pytest.raises(CallerError, match=r"start it with `contrail up --data.*-f FILE.* and --key-file"):
        find_by_data_folder(running(tmp_path, STOPPED).path)


def test_who_says_no_user_is_told_how_to_say_one() -> None:
    """What etcd refuses to nobody has the remedy with it; what it refuses to a user has not."""
    key = DeploymentKey.generate()
    stranger = DeploymentRef(deployment=Deployment(), key=key)
    remedy = "user name is empty; set CONTRAIL_ETCD_USER and CONTRAIL_ETCD_PASSWORD, give -f FILE"
    with pytest.raises(Refused, match=remedy), named_remedy(stranger):
        raise Refused("etcd at e:2: etcdserver: user name is empty")
    with (
        pytest.raises(Refused, match=r"permission denied$"),
        named_remedy(DeploymentRef(deployment=DEPLOYMENT, key=key)),
    ):
        raise Refused("etcd at e:2: permission denied")


def test_secrets_are_their_owners_alone(tmp_path: Path) -> None:
    """Key and deployment file are mode 600, also when they are written again."""
    data = running(tmp_path)
    write_whole(data.deployment, b"{}", mode=0o600)

    assert [path.stat().st_mode & 0o777 for path in (data.key, data.deployment)] == [0o600, 0o600]


def test_tls_files_are_handed_on(tmp_path: Path) -> None:
    """What the file says about TLS reaches the broker's credentials."""
    credentials = nats_credentials(LogCredentials(token="t", tls=Tls(ca=str(tmp_path / "ca.pem"))))

    assert credentials is not None
    assert tmp_path / "ca.pem" == credentials.tls_ca


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    """While the lock is held nobody else gets it; afterwards anybody does."""
    path = tmp_path / "lock"
    with FolderLock(path), pytest.raises(CallerError, match="in use by another `contrail up`"), FolderLock(path):
        pass
    with FolderLock(path):
        pass

"""A NATS of the operator's own: accounts as `contrail nats accounts` writes them, and one user for all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.errors import PeerError
from core.subjects import JOBS, LOAD, ROUTING, broker_stream, kv_stream, subject
from streams.embedded.embedded_nats import EmbeddedNats
from streams.jetstream.broker_accounts import ADMIN, REPLICA, ROLE_API, ROLES, WORKER
from streams.jetstream.nats_client import NatsClient
from streams.jetstream.nats_credentials import NatsCredentials
from tests.docs.pages import DOCS, blocks
from tests.e2e.deployment import contrail, up

NAMESPACE = "prod"


class OwnNats(EmbeddedNats):
    """A server whose configuration includes the file of `contrail nats accounts`."""

    def __init__(self, data: Path, accounts: Path) -> None:
        super().__init__(data)
        self._accounts = accounts

    def credentials_of(self, role: str) -> NatsCredentials:
        """By the seeds beside that file."""
        prefix = {} if role == ADMIN else {"api_prefix": ROLE_API}
        return NatsCredentials(nkey_file=self._accounts / f"{role}.nk", **prefix)  # type: ignore[arg-type]

    def _access(self) -> dict[str, Any]:
        return {}

    def _command(self) -> Any:
        command = super()._command()
        path = self._data / "nats-server.conf"
        # an `include` names a file beside this one
        path.write_text(path.read_text().removeprefix("{").rstrip().removesuffix("}") + "\ninclude accounts.conf\n")
        (self._data / "accounts.conf").write_text((self._accounts / "accounts.conf").read_text())
        return command


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[OwnNats]:
    """Such a server, started."""
    accounts = tmp_path / "accounts"
    assert contrail("nats", "accounts", "--namespace", NAMESPACE, str(accounts)).returncode == 0
    server = OwnNats(tmp_path / "nats", accounts)
    await server.start()
    yield server
    await server.stop()


def deployment_file(folder: Path, server: EmbeddedNats, credentials: dict[str, Any]) -> Path:
    """A deployment with this NATS."""
    log = {"nats": [server.url], "max_bytes": "1GiB", "credentials": credentials}
    workers = [{"engine": "simulated", "count": 1}]
    file = folder / "prod.yaml"
    file.write_text(json.dumps({"version": 1, "namespace": NAMESPACE, "log": log, "workers": workers}))
    return file


def documented(accounts: Path) -> dict[str, Any]:
    """The credentials of docs/deploy.md, with the seeds of that folder."""
    block = next(it for it in blocks("yaml", [DOCS / "deploy.md"]) if "replica.nk" in it.text)
    found: dict[str, Any] = yaml.safe_load(block.text.replace("/etc/contrail/", f"{accounts}/"))["log"]["credentials"]
    assert set(found) == {*ROLES, "tls"}
    del found["tls"]  # this server speaks no TLS
    return found


async def test_a_deployment_on_accounts(own: OwnNats, tmp_path: Path) -> None:
    """It serves, its commands work, `doctor` finds the rights just enough, and a worker's credentials forge nothing."""
    file = deployment_file(tmp_path, own, documented(tmp_path / "accounts"))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        messages: Any = [{"role": "user", "content": "Hello"}]
        answer = await running.openai.chat.completions.create(model="tiny", messages=messages, max_tokens=4)
        assert answer.choices
        here = ("--data", str(running.data))
        found = json.loads(contrail("doctor", *here, "--json").stdout)
        checks = {check["name"]: check for check in found["checks"]}
        assert (checks["broker_rights"]["status"], checks["broker_roles"]["status"]) == ("ok", "ok"), checks
        for words in (["snapshots", "take"], ["events", "--stream", "routing"], ["replicas"]):
            result = contrail(*words, *here)
            assert result.returncode == 0, result.stderr
        (tmp_path / "accounts" / "admin.nk").rename(tmp_path / "elsewhere.nk")
        found = json.loads(contrail("doctor", *here, "--json").stdout)
        checks = {check["name"]: check for check in found["checks"]}
        assert checks["broker_rights"]["status"] == "ok", "a seed that is not here is not checked"

    worker = NatsClient([own.url], own.credentials_of(WORKER), "attacker")
    await worker.open()
    for wanted in (
        f"{ROLE_API}.STREAM.PURGE.{broker_stream(NAMESPACE, kv_stream(0))}",
        subject(NAMESPACE, ROUTING, "x"),
    ):
        with pytest.raises(PeerError, match="no right to it"):
            await worker.call(wanted)
    await worker.close()


async def test_streams_are_made_by_the_admin_alone(own: OwnNats, tmp_path: Path) -> None:
    """A part that finds no streams says what is missing; `contrail nats streams` makes them."""
    key = tmp_path / "key"
    key.write_text("00" * 32)
    file = deployment_file(tmp_path, own, documented(tmp_path / "accounts"))
    words = ("-f", str(file), "--etcd", "127.0.0.1:1", "--key-file", str(key))
    result = contrail("snapshots", "take", *words)
    assert "stream snapshots is missing, and it cannot be made by these credentials" in result.stderr, result.stderr
    result = contrail("nats", "streams", *words)
    assert result.returncode == 0, result.stderr
    assert f"stream {JOBS} exists" in result.stdout
    replica = NatsClient([own.url], own.credentials_of(REPLICA), "test")
    await replica.open()
    assert (await replica.call(f"{ROLE_API}.STREAM.INFO.{broker_stream(NAMESPACE, LOAD)}"))["config"]
    await replica.close()


async def test_one_credential_for_all_is_named(tmp_path: Path) -> None:
    """It works as before, and `doctor` says what it may do beyond a worker's part."""
    server = EmbeddedNats(tmp_path / "nats", credentials=NatsCredentials(user="contrail", password="secret"))
    await server.start()
    try:
        file = deployment_file(tmp_path, server, {"user": "contrail", "password": "secret"})
        async with up(tmp_path / "data", "-f", str(file)) as running:
            found = json.loads(contrail("doctor", "--data", str(running.data), "--json").stdout)
            async with running.log() as log:
                states = {name: await log.state(name) for name in await log.streams()}
    finally:
        await server.stop()
    checks = {check["name"]: check for check in found["checks"]}
    assert (checks["broker_rights"]["status"], checks["broker_roles"]["status"]) == ("ok", "warning")
    text = checks["broker_roles"]["text"]
    for right in ("append to routing", "purge streams", "delete streams", "change streams"):
        assert right in text
    assert {state.first_seq for state in states.values()} == {1}, "the checks changed nothing"
    assert len(states) == 5

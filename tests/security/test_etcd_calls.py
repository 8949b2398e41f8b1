"""A local user makes the calls for which etcd asks no password: under its space alarm etcd would take no write."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from core.errors import Unavailable
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.etcd.etcd_credentials import EtcdCredentials
from streams.etcd.etcd_registry import EtcdRegistry
from tests.e2e.deployment import up
from tests.fixtures.local_user import LocalUser

CALL = """
import json, ssl, sys, urllib.error, urllib.request
trusting = ssl.create_default_context()
trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

def ask(scheme, path, body):
    url = f"{scheme}://{sys.argv[1]}{path}"
    try:
        request = urllib.request.Request(url, json.dumps(body).encode())
        with urllib.request.urlopen(request, None, 5, context=trusting) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return f"http {error.code}"
    except OSError as error:
        return type(error).__name__

found = {}
for scheme in ("http", "https"):
    status = ask(scheme, "/v3/maintenance/status", {})
    leases = ask(scheme, "/v3/lease/leases", {})
    known = isinstance(status, dict)
    member = status["header"]["member_id"] if known else 1
    lease = leases["leases"][0]["ID"] if known else 1
    calls = {
        "status": ("/v3/maintenance/status", {}),
        "grant": ("/v3/lease/grant", {"TTL": 1000000}),
        "keys": ("/v3/lease/timetolive", {"ID": lease, "keys": True}),
        "keep alive": ("/v3/lease/keepalive", {"ID": lease}),
        "alarm": ("/v3/maintenance/alarm", {"action": "ACTIVATE", "memberID": member, "alarm": "NOSPACE"}),
    }
    found[scheme] = {name: isinstance(ask(scheme, *call), dict) for name, call in calls.items()}
print(json.dumps(found))
"""
"""Prints by scheme which of the calls were answered, without any credential."""


def call(user: LocalUser, endpoint: str) -> dict[str, dict[str, bool]]:
    """The calls that were answered."""
    found: dict[str, dict[str, bool]] = json.loads(user.run(CALL, endpoint))
    return found


def none_answered(found: dict[str, dict[str, bool]]) -> bool:
    return not any(answered for calls in found.values() for answered in calls.values())


async def test_a_password_alone_leaves_calls_open(home: Path, local_user: LocalUser) -> None:
    """The attack is one: an etcd that asks for a password alone answers each call, and takes no write afterwards."""
    server = EmbeddedEtcd(home / "etcd")
    await server.start()
    try:
        registry = await EtcdRegistry.connect(server.endpoint, "test", server.credentials)
        assert all(call(local_user, server.endpoint)["http"].values())
        with pytest.raises(Unavailable, match="space exceeded"):
            await registry.put("settings/routing", b"{}")
        await registry.close()
    finally:
        await server.stop()


async def test_no_call_is_answered_without_the_certificate(home: Path, local_user: LocalUser) -> None:
    """Also in a folder that an earlier release made; a password alone opens nothing any more."""
    before = EmbeddedEtcd(home / "etcd")
    await before.start()
    registry = await EtcdRegistry.connect(before.endpoint, "test", before.credentials)
    await registry.put("settings/routing", b"{}")
    await registry.close()
    await before.stop()
    server = EmbeddedEtcd(home / "etcd", certified=True)
    await server.start()
    try:
        assert none_answered(call(local_user, server.endpoint))
        mine = server.credentials
        assert mine.key is not None
        assert stat.S_IMODE(mine.key.stat().st_mode) == 0o600
        for fewer in (
            EtcdCredentials(user=mine.user, password=mine.password),
            EtcdCredentials(user=mine.user, password=mine.password, ca=mine.ca),
        ):
            with pytest.raises(Unavailable):
                await EtcdRegistry.connect(server.endpoint, "test", fewer)
        registry = await EtcdRegistry.connect(server.endpoint, "test", mine)
        assert [change.value for change in await registry.get("settings/")] == [b"{}"]
        await registry.put("settings/routing", b"{}")
        await registry.close()
        server.kill()
        await server.start()
        assert server.credentials == mine
    finally:
        await server.stop()


async def test_the_etcd_of_a_deployment_asks_for_its_certificate(tmp_path: Path, local_user: LocalUser) -> None:
    async with up(tmp_path / "data", "--engine", "simulated", "--workers", "1") as running:
        assert none_answered(call(local_user, running.connection.etcd))
        answer: Any = await running.openai.completions.create(model="tiny", prompt="still", max_tokens=2)
        assert answer.usage.completion_tokens > 0

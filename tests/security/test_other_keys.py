"""A part with another deployment's key, in a namespace that is in use: refused before its first append."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.consistency.log_heads import HEADS_KEY
from api.process.planes import ensure_streams, open_log, open_registry
from core.codec import decode_message
from core.events import ReplicaLost, WorkerLost
from core.ids import StreamSeq
from core.keys import DeploymentKey
from streams.jetstream.broker_accounts import ADMIN, API, READER, REPLICA, WORKER
from streams.key_check import REGISTRY_KEY
from tests.e2e.by_hand import Access, by_hand
from tests.e2e.deployment import CONTRAIL, Running, contrail, up
from tests.security.test_broker_roles import attacker

SECONDS_MAX = 20.0


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One deployment, which has answered a request."""
    async with up(tmp_path_factory.mktemp("keys") / "data", "--engine", "simulated", "--workers", "1") as it:
        await it.openai.completions.create(model="tiny", prompt="hello", max_tokens=2)
        yield it


async def sources(running: Running) -> dict[str, set[str]]:
    """The sources of messages in each stream."""
    async with running.log() as log:
        return {
            stream: {decode_message(record.payload).source async for record in log.read(stream, StreamSeq(1))}
            for stream in await log.streams()
            if stream != "snapshots"
        }


def options(running: Running, role: str, key: Path) -> tuple[list[str], dict[str, str]]:
    """Options and environment of a part by hand, with that key file."""
    access = Access(running, role)
    words = [word for word in access.options if not word.startswith("--key-file")]
    return [*words, f"--key-file={key}"], {**os.environ, **access.environment}


async def refused(words: list[str], environment: dict[str, str]) -> str:
    """The last line of the command, which ended by itself, and not well."""
    process = await asyncio.create_subprocess_exec(
        *CONTRAIL, *words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
    except TimeoutError:
        process.terminate()
        output, _ = await process.communicate()
        pytest.fail(f"it started: {output.decode()[-2000:]}")
    assert process.returncode == 2, output
    return output.decode().strip().splitlines()[-1]


async def registered(running: Running) -> set[str]:
    """The keys in the registry, but for that of the deployment's own log keeper, which comes after some seconds."""
    async with open_registry(running.connection) as registry:
        return {change.key for change in await registry.get("")} - {HEADS_KEY}


@pytest.mark.parametrize("part", ["frontend", "worker", "prefill"])
async def test_a_part_with_another_key_is_refused(running: Running, tmp_path: Path, part: str) -> None:
    """The sentence names both keys; log and registry have no trace of the part."""
    key, before, keys = tmp_path / "other.key", await sources(running), await registered(running)
    other = DeploymentKey.load_or_create(key)
    role = REPLICA if part == "frontend" else WORKER
    words, environment = options(running, role, key)
    engine = ["--model", "tiny", "--engine", "simulated", "--model-path", str(tmp_path)]
    asked = {
        "frontend": ["frontend", "--listen", "127.0.0.1:0", "--journal", str(tmp_path)],
        "worker": ["worker", *engine],
        "prefill": ["prefill-worker", *engine],
    }[part]
    text = await refused([*asked, "--name", "stranger", *words], environment)
    namespace = running.connection.namespace
    for named in (running.connection.key.fingerprints(namespace)["0"], other.fingerprints(namespace)["0"], str(key)):
        assert named in text, text
    assert "--namespace" in text
    after = await sources(running)
    assert {stream: found - before[stream] for stream, found in after.items()} == {stream: set() for stream in after}
    assert await registered(running) == keys
    assert REGISTRY_KEY in keys


async def test_a_second_deployment_is_refused(running: Running, tmp_path: Path) -> None:
    """`contrail up` with a data folder of its own and the first one's NATS and etcd."""
    words, environment = options(running, REPLICA, tmp_path)
    addresses = [word for word in words if not word.startswith("--key-file")]
    data = tmp_path / "data"
    asked = ["up", "--data", str(data), "--engine", "simulated", "--workers", "1", "--port", "0", *addresses]
    text = await refused(asked, environment)
    key = DeploymentKey.load(data / "key")
    assert key.fingerprints(running.connection.namespace)["0"] in text
    assert str(data / "key") in text
    ends = [*await running.events("routing"), *await running.events("load"), *await running.events("kv_0")]
    assert not [event for event in ends if isinstance(event, ReplicaLost | WorkerLost)]


async def test_a_deployment_with_a_key_file(running: Running, tmp_path: Path) -> None:
    """Another key is refused, named by its file, and does not stay in the data folder; the right one does."""
    words, environment = options(running, REPLICA, tmp_path / "other.key")
    other = DeploymentKey.load_or_create(tmp_path / "other.key")
    data = tmp_path / "data"
    asked = ["up", "--data", str(data), "--engine", "simulated", "--workers", "1", "--port", "0", *words]
    text = await refused(asked, environment)
    assert other.fingerprints(running.connection.namespace)["0"] in text
    assert str(tmp_path / "other.key") in text
    assert not (data / "key").exists()
    async with up(tmp_path / "made", "--engine", "simulated", "--workers", "1", f"--key-file={tmp_path / 'other.key'}"):
        assert DeploymentKey.load(tmp_path / "made" / "key") == other


async def test_streams_of_the_version_before(running: Running, tmp_path: Path) -> None:
    """They have no fingerprints. The chains refuse another key, under the role of a worker too; a front end with the
    right key starts, and leaves it to the admin to write them."""
    connection = running.connection
    async with attacker(running, ADMIN) as admin:
        for stream in connection.topology.names():
            info = await admin.call(f"{API}.STREAM.INFO.{admin.stream(stream)}", None, "stream")
            await admin.call(
                f"{API}.STREAM.UPDATE.{admin.stream(stream)}", {**info["config"], "metadata": {}}, "stream"
            )
    key = tmp_path / "other.key"
    DeploymentKey.load_or_create(key)
    for role, part in ((REPLICA, ["frontend", "--listen", "127.0.0.1:0"]), (WORKER, ["worker", "--model", "tiny"])):
        words, environment = options(running, role, key)
        more = ["--journal", str(tmp_path)] if role == REPLICA else ["--engine", "simulated"]
        text = await refused([*part, *more, "--name", "stranger", *words], environment)
        assert "are sealed with another key" in text
        assert str(key) in text
    words = [*Access(running, REPLICA).options, "--listen", "127.0.0.1:0", "--journal", str(tmp_path)]
    async with by_hand(tmp_path / "log", "frontend", "--name", "edge", *words, access=Access(running, REPLICA)) as edge:
        await edge.address()
        async with open_log(connection, READER) as log:
            assert [await log.fingerprints(name) for name in connection.topology.names()] == [{}] * 5
    async with open_log(connection, ADMIN) as log:
        await ensure_streams(log, connection, ADMIN)
    async with open_log(connection, WORKER) as log:
        own = connection.key.fingerprints(connection.namespace)
        assert [await log.fingerprints(name) for name in connection.topology.names()] == [own] * 5
    assert contrail("doctor", "--data", str(running.data)).returncode == 0

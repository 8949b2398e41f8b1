"""A worker's or a replica's credentials for NATS, against the server of a running deployment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from core.codec import CHAIN_START, decode_message, encode_event, encode_message
from core.errors import PeerError
from core.events import ReplicaJoined, ReplicaLost
from core.ids import SourceId, StreamName, StreamSeq, new_id
from core.subjects import JOBS, LOAD, ROUTING, SNAPSHOTS, broker_stream, kv_stream, subject
from streams.jetstream.broker_accounts import ADMIN, API, READER, REPLICA, WORKER
from streams.jetstream.nats_client import NatsClient
from streams.topology import Topology
from tests.e2e.deployment import Running, contrail, up

KV = kv_stream(0)
STREAMS = (KV, LOAD, JOBS, ROUTING, SNAPSHOTS)
MADE_AGAIN_S = 20.0
SETTLE_S = 0.3
"""What the server publishes on behalf of a request is stored by then."""


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One `contrail up` on simulated engines, which has answered a request."""
    async with up(tmp_path_factory.mktemp("roles") / "data", "--engine", "simulated") as it:
        await ask(it)
        yield it


async def ask(running: Running) -> None:
    """A request is answered."""
    messages: Any = [{"role": "user", "content": "Hello"}]
    answer = await running.openai.chat.completions.create(model="tiny", messages=messages, max_tokens=4)
    assert answer.choices


class Attacker(NatsClient):
    """A client with the credentials of a role, which asks for what it likes."""

    def __init__(self, running: Running, role: str) -> None:
        it = running.connection
        super().__init__(it.nats, it.nats_credentials(role), "attacker")
        self._namespace = it.namespace

    def stream(self, name: StreamName) -> str:
        """The stream's name at the broker."""
        return broker_stream(self._namespace, name)

    def subject(self, stream: StreamName, token: str) -> str:
        """A subject of the stream."""
        return subject(self._namespace, stream, token)

    async def is_taken(self, subject: str, payload: bytes = b"") -> bool:
        """True if the broker answers the request, and does not refuse it."""
        try:
            answer = await self.exchange(subject, payload)
        except PeerError:
            return False
        return bool(answer.payload) and "error" not in json.loads(answer.payload)

    async def send(self, subject: str, payload: bytes, reply: str) -> None:
        """The request is sent, and all its effects have happened."""
        self.publish(subject, payload, reply)
        await asyncio.sleep(SETTLE_S)


@asynccontextmanager
async def attacker(running: Running, role: str) -> AsyncIterator[Attacker]:
    """A connected one."""
    it = Attacker(running, role)
    await it.open()
    try:
        yield it
    finally:
        await it.close()


async def is_intact(running: Running) -> bool:
    """True if no stream is gone or was cut, and all decisions are those of the front end."""
    replica = running.part("frontend-0")["id"]
    async with running.log() as log:
        if set(await log.streams()) != set(STREAMS):
            return False
        records = [record async for record in log.read(ROUTING, StreamSeq(1))]
        manifests = await log.state(SNAPSHOTS)
    joined = decode_message(records[0].payload).events[0] if records and records[0].seq == 1 else None
    return (
        isinstance(joined, ReplicaJoined)
        and {record.subject for record in records} == {subject(running.connection.namespace, ROUTING, replica)}
        and not manifests.messages
    )


def forged(writer: str) -> bytes:
    """A message that another replica seems to have written."""
    events = [
        encode_event(ReplicaJoined(name="forged", version="0")),
        encode_event(ReplicaLost(by=writer, reason="forged")),
    ]
    return encode_message(SourceId(writer), 0, CHAIN_START, 0, events)


@pytest.mark.parametrize("role", [WORKER, REPLICA, READER])
async def test_no_role_changes_streams(running: Running, role: str) -> None:
    """Streams are purged, deleted, changed and made by the deployment's own hand alone."""
    async with attacker(running, role) as it:
        for prefix in {API, it.api}:
            assert not await it.is_taken(f"{prefix}.STREAM.PURGE.{it.stream(KV)}")
            assert not await it.is_taken(f"{prefix}.STREAM.DELETE.{it.stream(LOAD)}")
            config = Topology(max_bytes=10**6, max_age_s=1).config(ROUTING).as_json(running.connection.namespace)
            body = json.dumps(config).encode()
            assert not await it.is_taken(f"{prefix}.STREAM.UPDATE.{it.stream(ROUTING)}", body)
            body = json.dumps({"name": "own", "subjects": ["own"]}).encode()
            assert not await it.is_taken(f"{prefix}.STREAM.CREATE.own", body)
            body = json.dumps({"seq": 1}).encode()
            assert not await it.is_taken(f"{prefix}.STREAM.MSG.DELETE.{it.stream(ROUTING)}", body)
    assert await is_intact(running)
    await ask(running)


async def test_the_admin_may(running: Running) -> None:
    """The same requests are taken from the deployment's own hand, so they are what the attack says."""
    async with attacker(running, ADMIN) as it:
        body = json.dumps({"name": "own", "subjects": ["own"]}).encode()
        assert await it.is_taken(f"{API}.STREAM.CREATE.own", body)
        assert await it.is_taken(f"{API}.STREAM.PURGE.own")
        assert await it.is_taken(f"{API}.STREAM.DELETE.own")


async def test_a_worker_writes_no_decisions(running: Running) -> None:
    """A worker's credentials append to the streams of workers alone, a reader's to none."""
    for role, refused in ((WORKER, {ROUTING, SNAPSHOTS}), (READER, set(STREAMS))):
        async with attacker(running, role) as it:
            for stream in STREAMS:
                writer = new_id()
                taken = await it.is_taken(
                    it.subject(stream, f"answer.{writer}" if stream == JOBS else writer), forged(writer)
                )
                assert taken == (stream not in refused), (role, stream)
    replica = running.part("frontend-0")["id"]
    async with attacker(running, WORKER) as it:
        end = encode_event(ReplicaLost(by=new_id(), reason="forged"))
        message = encode_message(SourceId(f"{replica}-lost"), 0, CHAIN_START, 0, [end])
        assert not await it.is_taken(it.subject(ROUTING, replica), message)
    assert await is_intact(running)


async def test_replies_are_no_way_around(running: Running) -> None:
    """JetStream answers to any reply subject, so a reply that names another request must reach nothing."""
    async with attacker(running, WORKER) as it:
        own, jobs = it.subject(JOBS, f"answer.{new_id()}"), it.stream(JOBS)
        create = f"{it.api}.CONSUMER.CREATE.{jobs}"
        victims = [
            it.subject(ROUTING, new_id()),
            f"{API}.STREAM.PURGE.{it.stream(ROUTING)}",
            f"{API}.STREAM.DELETE.{it.stream(ROUTING)}",
            f"{it.api}.STREAM.PURGE.{it.stream(ROUTING)}",
        ]
        for victim in victims:
            seq = json.loads((await it.exchange(own, b"")).payload)["seq"]
            await it.send(own, b"", victim)  # the acknowledgement
            for verb in ("STREAM.MSG.GET", "DIRECT.GET"):
                await it.send(f"{it.api}.{verb}.{jobs}", json.dumps({"seq": seq}).encode(), victim)
            config = {"ack_policy": "none", "deliver_policy": "all", "mem_storage": True}
            body = json.dumps({"stream_name": jobs, "config": config}).encode()
            name = json.loads((await it.exchange(create, body)).payload)["name"]
            await it.send(f"{it.api}.CONSUMER.MSG.NEXT.{jobs}.{name}", json.dumps({"batch": 5}).encode(), victim)
            pushed = json.dumps({"stream_name": jobs, "config": config | {"deliver_subject": victim}}).encode()
            await it.send(create, pushed, it.new_inbox())
            assert await is_intact(running), victim
    await ask(running)


async def test_no_role_hears_the_replies_to_another(running: Running) -> None:
    """A worker that listens to every subject hears nothing of the front ends' requests and their answers."""
    heard: list[bytes] = []
    async with attacker(running, WORKER) as it:
        it.subscribe(">", lambda subject, *_: heard.append(subject))
        await ask(running)
        assert contrail("events", "--data", str(running.data), "--stream", "routing").returncode == 0
    assert not [subject for subject in heard if b".routing." in subject]


async def test_doctor_knows_the_rights(running: Running) -> None:
    """The credentials of a deployment's own NATS are just enough for each role."""
    output = contrail("doctor", "--data", str(running.data), "--json").stdout
    checks = {check["name"]: check for check in json.loads(output)["checks"]}
    assert (checks["broker_rights"]["status"], checks["broker_roles"]["status"]) == ("ok", "ok"), checks


async def test_a_stream_that_is_gone_is_made_again(running: Running) -> None:
    """No process may make a stream, so the deployment's own hand does, also while it runs."""
    async with attacker(running, ADMIN) as it:
        assert await it.is_taken(f"{API}.STREAM.DELETE.{it.stream(LOAD)}")
        info = f"{API}.STREAM.INFO.{it.stream(LOAD)}"
        async with asyncio.timeout(MADE_AGAIN_S):
            while not await it.is_taken(info):
                await asyncio.sleep(0.1)
    await ask(running)

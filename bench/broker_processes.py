"""Publishers and followers of `bench.broker`, each a process of its own.

A publisher has several chains: each appends one message after another to its own subject and has one append in flight,
as outboxes do. A follower tails streams as replicas do, and counts the messages without folding them. Both take orders
as lines of JSON from standard input, and answer each with one; they end with their standard input.

    python -m bench.broker_processes publisher|follower
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from core.ids import SourceId, StreamName, StreamSeq, new_id
from core.subjects import ROUTING, subject
from streams.jetstream.jetstream_log import JetStreamLog
from streams.jetstream.nats_credentials import NatsCredentials
from streams.log import Record
from streams.topology import Topology

NAMESPACE = "bench"
PUBLISHER, FOLLOWER = "publisher", "follower"
LOOK_EVERY_S = 0.002
"""Between two looks of a follower whether it has read all."""
MICRO = 1e6
Answer = dict[str, Any]


def credentials_of(given: dict[str, str]) -> NatsCredentials:
    """The credentials that `given_credentials` wrote."""
    files = {key: Path(value) for key, value in given.items() if key == "nkey_file"}
    return NatsCredentials(**{**given, **files})  # type: ignore[arg-type]  # its fields, by name


def given_credentials(credentials: NatsCredentials) -> dict[str, str]:
    """Credentials as JSON has them; only of the kinds that servers of our own take."""
    if credentials.user is not None and credentials.password is not None:
        return {"user": credentials.user, "password": credentials.password}
    return {"nkey_file": str(credentials.nkey_file), "api_prefix": credentials.api_prefix}


class PublisherChain:
    """One source's messages in one stream, all of the same bytes under ids of their own."""

    def __init__(self, log: JetStreamLog, stream: StreamName, payload: bytes) -> None:
        self.payload = payload
        self._log = log
        self._stream = stream
        self._source = SourceId(new_id())
        self._subject = subject(NAMESPACE, stream, self._source)
        self._seq = StreamSeq(0)
        self._n = 0

    async def run(self, start_s: float, end_s: float, every_s: float, took_us: array[int]) -> int:
        """Appends until `end_s`, one after the other, or at that pace; returns the number of messages. `took_us` gets
        the time of each acknowledgement."""
        due_s, before = start_s, self._n
        while (now_s := time.monotonic()) < end_s:
            if now_s < due_s:
                await asyncio.sleep(due_s - now_s)
                continue
            due_s += every_s
            began_s = time.monotonic()
            message_id = f"{self._source}:{self._n}"
            self._seq = await self._log.append(self._stream, self._subject, self.payload, message_id, self._seq)
            took_us.append(round((time.monotonic() - began_s) * MICRO))
            self._n += 1
        return self._n - before


async def publish(chains: list[PublisherChain], seconds: float, per_s: float | None) -> Answer:
    """All chains append for so long, at that rate together or as fast as they can."""
    took_us, cpu_s, start_s = array("I"), time.process_time(), time.monotonic()
    every_s = len(chains) / per_s if per_s else 0.0
    starts_s = [start_s + every_s * place / len(chains) for place in range(len(chains))]
    runs = [
        chain.run(first_s, start_s + seconds, every_s, took_us) for chain, first_s in zip(chains, starts_s, strict=True)
    ]
    counts = await asyncio.gather(*runs)
    return {
        "messages": sum(counts),
        "bytes": sum(count * len(chain.payload) for count, chain in zip(counts, chains, strict=True)),
        "cpu_s": time.process_time() - cpu_s,
        "ended_s": time.monotonic(),
        "took_us": took_us.tolist(),
    }


class StreamFollower:
    """The messages of some streams from now on, counted."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.messages = 0
        self.bytes = 0
        self.at_s = 0.0
        """When the last message came."""
        self._cpu_s = time.process_time()

    async def open(self, log: JetStreamLog, streams: list[StreamName]) -> None:
        """It follows the streams."""
        for stream in streams:
            self.last[stream] = (await log.state(stream)).last_seq
            await log.tail(stream, StreamSeq(self.last[stream] + 1), self._on_record)

    async def until(self, ends: dict[str, int]) -> Answer:
        """The counts since the last answer, once all messages up to these sequences are there."""
        while any(self.last[stream] < end for stream, end in ends.items()):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(LOOK_EVERY_S)
        cpu_s = time.process_time()
        found = {"messages": self.messages, "bytes": self.bytes, "at_s": self.at_s, "cpu_s": cpu_s - self._cpu_s}
        self.messages, self.bytes, self._cpu_s = 0, 0, cpu_s
        return found

    def _on_record(self, record: Record) -> None:
        self.messages += 1
        self.bytes += len(record.payload)
        self.last[record.stream] = record.seq
        self.at_s = time.monotonic()


async def publisher(given: Answer) -> None:
    """Publishes by orders."""
    logs = {role: await _connected(given, role) for role in ("worker", "replica")}
    chains = [
        PublisherChain(logs["replica" if stream == ROUTING else "worker"], StreamName(stream), bytes.fromhex(payload))
        for stream, payload in given["chains"]
    ]
    await _answer_orders(lambda order: publish(chains, order["seconds"], order["per_s"]))
    for log in logs.values():
        await log.close()


async def follower(given: Answer) -> None:
    """Follows, and answers orders."""
    log, following = await _connected(given, "replica"), StreamFollower()
    await following.open(log, [StreamName(stream) for stream in given["streams"]])
    await _answer_orders(lambda order: following.until(order["until"]))
    await log.close()


async def _connected(given: Answer, role: str) -> JetStreamLog:
    credentials = credentials_of(given["credentials"][role])
    return await JetStreamLog.connect(given["urls"], NAMESPACE, Topology(), credentials)


async def _answer_orders(answered: Callable[[Answer], Any]) -> None:
    _say({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        _say(await answered(json.loads(line)))


def _say(answer: Answer) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    uvloop.run({PUBLISHER: publisher, FOLLOWER: follower}[sys.argv[1]](json.loads(sys.stdin.readline())))

"""A process that says things until it is killed: `python -m tests.actors.doomed FOLDER [NATS_URL USER PASSWORD]`.

It says its id, then after each event that it put how many those are. Without a broker the log is away.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from actors.membership.decision_bases import DecisionBases
from actors.membership.routing_publisher import RoutingPublisher
from core.clock import SystemClock
from core.events import LocalChanged, ReplicaJoined
from core.subjects import ROUTING
from projections.folds.state import State
from streams.jetstream.jetstream_log import JetStreamLog
from streams.jetstream.nats_credentials import NatsCredentials
from streams.log import EventLog
from streams.memory.memory_log import MemoryLog
from streams.topology import Topology
from tests.streams.left import DEPLOYMENT, NAMESPACE

BURST = 7
"""Events between two turns of the loop."""


def print_line(what: object) -> None:
    """The one who started us reads it."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


async def speak(folder: Path, log: EventLog) -> None:
    publisher = RoutingPublisher(
        NAMESPACE,
        log,
        SystemClock(),
        DEPLOYMENT,
        State(DEPLOYMENT.chain_key),
        DecisionBases(),
        restate=list,
        on_superseded=lambda: None,
        journal=folder,
    )
    print_line(publisher.id)
    publisher.start(ReplicaJoined(name="doomed", version="0"))
    for count in range(1, 1_000_000):
        publisher.publish(LocalChanged(worker=f"{count:016x}", reasons=()))
        print_line(count)
        if count % BURST == 0:
            await asyncio.sleep(0.0005)


async def main(folder: str, *broker: str) -> None:
    log: EventLog
    if broker:
        url, nkey = broker
        credentials = NatsCredentials(nkey_file=Path(nkey))
        log = await JetStreamLog.connect([url], NAMESPACE, Topology(max_bytes=10**8), credentials)
        await log.ensure([ROUTING])
    else:
        memory = MemoryLog(NAMESPACE, SystemClock())
        memory.away = True
        log = memory
    await speak(Path(folder), log)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

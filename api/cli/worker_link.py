"""Worker link: a connection of a command to one worker, past front ends and routers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from actors.membership.registration import Registration, registration_of
from actors.transport.reconnecting_client import ReconnectingClient
from api.config.deployment_ref import DeploymentRef
from api.process.planes import open_registry
from core.clock import SystemClock
from core.errors import Unavailable
from core.events.kv import DECODE
from core.ids import WorkerId, new_id

WORKERS = "workers/"
CONNECT_S = 10.0
"""Longest wait for the worker's welcome."""


@asynccontextmanager
async def worker_link(
    connection: DeploymentRef, worker: WorkerId, about: Registration, command: str
) -> AsyncIterator[ReconnectingClient]:
    """A connection to that worker which is up, in the name of the command. Unavailable if it does not answer."""
    clock, up = SystemClock(), asyncio.Event()
    security = connection.link(clock).security(connection.key, connection.namespace, clock)
    own_id = f"{command}-{new_id()}"
    link = ReconnectingClient(
        worker, about.address, security, lambda: own_id, lambda it: up.set() if it.up else None, steps=False
    )
    link.start()
    try:
        try:
            async with asyncio.timeout(CONNECT_S):
                await up.wait()
        except TimeoutError as error:
            reason = link.refusal or f"no answer within {CONNECT_S:g} s"
            raise Unavailable(f"worker {about.name or worker} at {about.address}: {reason}") from error
        yield link
    finally:
        await link.close()


async def decode_workers(connection: DeploymentRef) -> dict[WorkerId, Registration]:
    """All registered workers that answer requests. Unavailable if the registry is away."""
    async with open_registry(connection) as registry:
        changes = await registry.get(WORKERS)
    return {
        WorkerId(change.key.removeprefix(WORKERS)): about
        for change in changes
        if (about := registration_of(change)) is not None and about.role == DECODE
    }

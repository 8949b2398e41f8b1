"""ProfiledWorker: a running worker of a deployment as an engine that can be measured.

Its requests go to the worker directly, past front ends and routers: no log has them. The blocks of their prompts enter
the worker's cache, and others leave it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from actors.membership.registration import Registration
from actors.transport.reconnecting_client import ReconnectingClient
from api.cli.worker_link import decode_workers, worker_link
from api.config.deployment_ref import DeploymentRef
from core.errors import CallerError, Unavailable
from core.generation import NO_HINT, GenerateRequest, Output
from core.ids import WorkerId


class _Outputs:
    """Outputs of one request that were not read yet."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Output | Exception] = asyncio.Queue()
        """Bounded by the request's own tokens."""

    def put(self, output: Output) -> None:
        """As of `OutputReceiver`."""
        self.queue.put_nowait(output)

    def fail(self, error: Exception) -> None:
        """As of `OutputReceiver`."""
        self.queue.put_nowait(error)


class ProfiledWorker:
    """One worker, over a connection that is up."""

    def __init__(self, name: str, about: Registration, link: ReconnectingClient) -> None:
        self.name = name
        self.about = about
        self._link = link

    def __repr__(self) -> str:
        return f"<ProfiledWorker {self.name} at {self.about.address}>"

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Output]:
        """As of `actors.engines.engine.Engine`. Unavailable if the worker cannot be reached any more."""
        connection = self._link.connection
        if connection is None:
            raise Unavailable(f"the connection to worker {self.name} broke: {self._link.refusal or 'it closed it'}")
        outputs = _Outputs()
        number = connection.open(outputs, self.about.model, request, NO_HINT)
        try:
            while True:
                found = await outputs.queue.get()
                if isinstance(found, Exception):
                    raise found
                yield found
                if found.finish is not None:
                    return
        finally:
            connection.cancel(number)


@asynccontextmanager
async def profiled_worker(connection: DeploymentRef, name: str) -> AsyncIterator[ProfiledWorker]:
    """The worker of that name, connected; without a name the deployment's only decode worker. CallerError if there is
    none, or if there are several. Unavailable if it does not answer."""
    worker, about = await _find(connection, name)
    async with worker_link(connection, worker, about, "profile") as link:
        yield ProfiledWorker(about.name or worker, about, link)


async def _find(connection: DeploymentRef, name: str) -> tuple[WorkerId, Registration]:
    found = await decode_workers(connection)
    names = sorted(about.name or worker for worker, about in found.items())
    if not found:
        raise CallerError("the deployment has no worker that answers requests now")
    if not name and len(found) > 1:
        raise CallerError(f"the deployment has several workers: name one with --worker: {', '.join(names)}")
    for worker, about in found.items():
        if not name or name in {worker, about.name}:
            return worker, about
    raise CallerError(f"there is no worker {name!r}; there are {', '.join(names)}")

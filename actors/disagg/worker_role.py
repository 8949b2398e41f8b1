"""WorkerRole: how a worker takes part in remote prefill: not at all, by asking others, or by computing for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, Protocol

from msgspec.structs import replace

from actors.disagg.prefill_peers import Kind, PrefillConnection
from actors.engines.engine import BlockTransfer, Engine
from actors.kv_cache.cache_mirror import CacheMirror
from actors.membership.worker_publisher import WorkerPublisher
from actors.transport.frames import FromPrefill, Generate
from actors.transport.handshake import LinkSecurity
from core.clock import Clock
from core.errors import Unavailable
from core.events.jobs import JobEvent
from core.failure import log_failure
from core.generation import GenerateRequest, Hint, Output
from core.keys import DeploymentKey
from core.settings import RoutingSettings
from streams.log import EventLog
from streams.registry import Registry

_log_failure = log_failure(logging.getLogger(__name__), "a part of remote prefill failed by a defect")


class RoleContext(Protocol):
    """The part of a worker that its role uses."""

    namespace: str
    engine: Engine
    mirror: CacheMirror | None
    """Of the engine's cache; there once the engine is up."""
    log: EventLog
    registry: Registry
    clock: Clock
    key: DeploymentKey
    link: LinkSecurity
    routing: RoutingSettings

    def current_publisher(self) -> WorkerPublisher:
        """The worker's present life."""

    def leave(self, reason: str) -> None:
        """The worker ends, for this reason."""

    def served(self, prompt_tokens: int, cached_tokens: int) -> None:
        """A prompt was computed."""


class WorkerRole:
    """`generate` serves a request; the rest is between decode workers and prefill workers.

    The methods here do nothing, as is right for a worker that takes no part.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @property
    def jobs_open(self) -> int:
        """Jobs of this worker that are not over by its own word."""
        return 0

    @property
    def waits_elsewhere(self) -> int:
        """Requests that are here and do not wait for the engine."""
        return 0

    async def start(self) -> None:
        """The worker has joined; what others are needed for is looked for from now on."""

    def rejoined(self) -> None:
        """The worker goes on under another id."""

    async def quiet(self) -> None:
        """Nothing new is taken, and nothing of what was is left; the caller bounds the wait."""

    async def stop(self) -> None:
        """Nothing is done any more."""

    def generate(self, frame: Generate) -> AsyncIterator[Output]:
        """As the engine's."""
        raise NotImplementedError

    def on_frame(self, connection: PrefillConnection, frame: FromPrefill) -> None:
        """A prefill worker spoke."""

    def on_disconnect(self, connection: PrefillConnection) -> None:
        """A connection broke."""

    def totals(self) -> dict[str, int]:
        """Counts since the start, by the names of `actors.metrics.worker_metrics.TOTALS`."""
        return {}

    def describe(self) -> dict[str, Any]:
        """For people; empty if there is nothing to say."""
        return {}


class AggregatedRole(WorkerRole):
    """A worker that computes all its prompts itself."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    def generate(self, frame: Generate) -> AsyncIterator[Output]:
        """The engine's own."""
        return self._engine().generate(without_slow_tiers(frame.request, frame.hint))


def without_slow_tiers(request: GenerateRequest, hint: Hint) -> GenerateRequest:
    """The request as this worker's engine gets it: from tiers that the router found slower than computing nothing is
    loaded."""
    return replace(request, skip_tiers=hint.skip_tiers) if hint.skip_tiers else request


class TransferRole(WorkerRole):
    """The base of both roles whose engines move blocks: the engine's side of that, jobs' events, and tasks."""

    def __init__(self, context: RoleContext) -> None:
        info, transfer = context.engine.info, context.engine.transfer
        assert transfer is not None
        self._context = context
        self._transfer: BlockTransfer = transfer
        self._kind = Kind(info.model, info.block_size, transfer.address.layout)
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks that end by themselves soon; `stop` waits for them."""

    def _publish(self, event: JobEvent) -> None:
        """The event goes to the worker's own chain of the jobs stream."""
        self._context.current_publisher().publish_job(event)

    def _spawn(self, work: Coroutine[None, None, None], name: str | None = None) -> asyncio.Task[None]:
        """The work is a task; a defect in it is logged."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_log_failure)
        return task

    def _spawn_short(self, work: Coroutine[None, None, None]) -> None:
        """The same for work that `stop` waits for."""
        task = self._spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def unavailable_outputs(text: str) -> AsyncGenerator[Output, None]:
    """The answer of a worker that serves no requests: Unavailable."""
    raise Unavailable(text)
    yield Output()  # what makes this a generator

"""WorkerRole: how a worker takes part in remote prefill: not at all, by asking others, or by computing for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Protocol

from actors.disagg.prefill_peers import PrefillConnection
from actors.engines.engine import Engine
from actors.kv_cache.cache_mirror import CacheMirror
from actors.membership.worker_publisher import WorkerPublisher
from actors.transport.frames import FromPrefill, Generate
from actors.transport.handshake import LinkSecurity
from core.clock import Clock
from core.errors import Unavailable
from core.generation import Output
from core.keys import DeploymentKey
from core.settings import RoutingSettings
from streams.log import EventLog
from streams.registry import Registry


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


class WorkerRole(Protocol):
    """`generate` serves a request; the rest is between decode workers and prefill workers."""

    @property
    def jobs_open(self) -> int:
        """Jobs of this worker that are not over by its own word."""

    @property
    def waits_elsewhere(self) -> int:
        """Requests that are here and do not wait for the engine."""

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

    def on_frame(self, connection: PrefillConnection, frame: FromPrefill) -> None:
        """A prefill worker spoke."""

    def on_disconnect(self, connection: PrefillConnection) -> None:
        """A connection broke."""

    def totals(self) -> dict[str, int]:
        """Counts since the start, by the names of `actors.metrics.worker_metrics.TOTALS`."""

    def describe(self) -> dict[str, Any]:
        """For people; empty if there is nothing to say."""


class AggregatedRole:
    """A worker that computes all its prompts itself."""

    jobs_open = 0
    waits_elsewhere = 0

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return "<AggregatedRole>"

    async def start(self) -> None:
        """There is nothing to do."""

    def rejoined(self) -> None:
        """No other process needs to know."""

    async def quiet(self) -> None:
        """It always is."""

    async def stop(self) -> None:
        """There is nothing to end."""

    def generate(self, frame: Generate) -> AsyncIterator[Output]:
        """The engine's own."""
        return self._engine().generate(frame.request)

    def on_frame(self, connection: PrefillConnection, frame: FromPrefill) -> None:
        """We want nothing of it."""

    def on_disconnect(self, connection: PrefillConnection) -> None:
        """We wanted nothing of it."""

    def totals(self) -> dict[str, int]:
        """Nothing is counted."""
        return {}

    def describe(self) -> dict[str, Any]:
        """There is nothing to say."""
        return {}


async def unavailable_outputs(text: str) -> AsyncGenerator[Output, None]:
    """The answer of a worker that serves no requests: Unavailable."""
    raise Unavailable(text)
    yield Output()  # what makes this a generator

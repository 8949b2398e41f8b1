"""ReplicaMembership: a replica under its present id: its chain in the log, its key in the registry.

Another may write the end of a replica that lives. That stands, and the replica goes on at once under a new id with its
requests in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

from actors.membership.registration import RegistrationLease
from actors.membership.runtime_context import RuntimeContext
from actors.router.routing_publisher import RoutingPublisher
from core.events import Event, ReplicaJoined, ReplicaRestated
from core.ids import ReplicaId
from projections.folds.state import State
from streams.live_settings import LiveSettings


class ReplicaMembership:
    """One publisher after another; `publisher` is the present one."""

    def __init__(
        self,
        context: RuntimeContext,
        joined: ReplicaJoined,
        state: State,
        live_settings: LiveSettings,
        restated: Callable[[str], ReplicaRestated],
        *,
        journal: Path | None,
        journal_bytes: int,
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._context = context
        self._joined = joined
        self._state = state
        self._live_settings = live_settings
        self._restated = restated
        self._journal = journal
        self._journal_bytes = journal_bytes
        self._spawn = spawn
        self._details: dict[str, object] = {}
        self._stopping = False
        self.publisher = self._new_publisher()
        self._lease = RegistrationLease(context.registry, f"replicas/{self.publisher.id}")
        self.on_new_id: Callable[[ReplicaId], None] = lambda _: None
        """Called when the replica goes on under another id than before."""

    def __repr__(self) -> str:
        return f"<ReplicaMembership {self._joined.name} as {self.publisher!r}>"

    def begin(self) -> None:
        """The first words are on their way to the log: who this is, what it decides by."""
        self.publisher.start(self._joined)
        self.publish_settings()

    async def register(self, details: dict[str, object]) -> None:
        """The registry knows us, or will when it is back; `details` go into it too."""
        self._details = details
        await self._register()

    def publish(self, event: Event) -> None:
        """The event counts now and goes to the log, in order."""
        self.publisher.publish(event)

    def publish_settings(self) -> None:
        """The log knows what decisions go by from here on."""
        self.publish(self._live_settings.event())

    async def deregister(self) -> None:
        """The registry forgets us, or will when it is back."""
        await self._lease.remove()

    async def leave(self, reason: str) -> None:
        """The log has our last word if that was possible in time."""
        self._stopping = True
        await self.publisher.leave(reason)

    async def restate_periodically(self, every_s: float) -> None:
        """The first time comes at a moment of the id's own, so that replicas do not speak all at once."""
        await asyncio.sleep(every_s * int(self.publisher.id, 16) / 2**64)
        while True:
            self.restate("the quarter of the retention time is over")
            await asyncio.sleep(every_s)

    def restate(self, why: str) -> None:
        """Who this is, what it decides by and what is in flight is said again."""
        self.publish(self._joined)
        self.publish_settings()
        self.publisher.restate(self._restated(why))

    def _new_publisher(self) -> RoutingPublisher:
        return RoutingPublisher(
            self._context.namespace,
            self._context.log,
            self._context.clock,
            self._context.key,
            self._state,
            restate=self._restatement,
            on_superseded=self._on_superseded,
            journal=self._journal,
            journal_bytes=self._journal_bytes,
        )

    def _restatement(self) -> list[Event]:
        """Events were dropped, or the log does not end where we left it: who we are and all that counts now."""
        return [self._joined, self._live_settings.event(), self._restated("events of ours are missing")]

    def _on_superseded(self) -> None:
        if self._stopping:
            return
        before, self.publisher = self.publisher, self._new_publisher()
        self.begin()
        self.publisher.restate(self._restated(f"was {before.id}"))
        lease, self._lease = self._lease, RegistrationLease(self._context.registry, f"replicas/{self.publisher.id}")
        self._spawn(self._register_again(before, lease))
        self.on_new_id(self.publisher.id)

    async def _register_again(self, before: RoutingPublisher, lease: RegistrationLease) -> None:
        """The registry knows us as we are now."""
        await before.end()
        await self._register()
        await lease.remove()

    async def _register(self) -> None:
        about = {"id": self.publisher.id, "name": self._joined.name, "address": self._joined.address}
        await self._lease.put({**about, **self._details})

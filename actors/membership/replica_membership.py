"""Life: what a replica is to others under its present id: its chain in the log, its key in the registry.

Another may write our end though we live. That stands, and we go on at once under a new id with what is in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

from actors.membership.failure_detector import RegisteredReplicas
from actors.membership.registration import RegistrationLease
from actors.membership.runtime_context import RuntimeContext
from actors.router.routed_request import AttemptTable
from actors.router.routing_publisher import RoutingPublisher
from core.events import Event, ReplicaJoined
from core.ids import ReplicaId
from projections.folds.state import State
from streams.live_settings import LiveSettings


class ReplicaMembership:
    """One voice after another; `voice` is the present one."""

    def __init__(
        self,
        around: RuntimeContext,
        joined: ReplicaJoined,
        state: State,
        live: LiveSettings,
        flights: AttemptTable,
        *,
        journal: Path | None,
        journal_bytes: int,
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._around = around
        self._joined = joined
        self._state = state
        self._live = live
        self._flights = flights
        self._journal = journal
        self._journal_bytes = journal_bytes
        self._spawn = spawn
        self._details: dict[str, object] = {}
        self._stopping = False
        self.voice = self._new_voice()
        self._entry = RegistrationLease(around.registry, f"replicas/{self.voice.id}")
        self.look = RegisteredReplicas(self.voice.id)
        self.on_new_id: Callable[[ReplicaId], None] = lambda _: None
        """Called when the replica goes on under another id than before."""

    def __repr__(self) -> str:
        return f"<ReplicaMembership {self._joined.name} as {self.voice!r}>"

    def begin(self) -> None:
        """The first words are on their way to the log: who this is, what it decides by."""
        self.voice.start(self._joined)
        self.say_settings()

    async def register(self, details: dict[str, object]) -> None:
        """The registry knows us, or will when it is back; `details` go into it too."""
        self._details = details
        await self._register()

    def say(self, event: Event) -> None:
        """The event counts now and goes to the log, in order."""
        self.voice.say(event)

    def say_settings(self) -> None:
        """The log knows what decisions go by from here on."""
        self.say(self._live.event())

    async def forget(self) -> None:
        """The registry forgets us, or will when it is back."""
        await self._entry.remove()

    async def leave(self, reason: str) -> None:
        """The log has our last word if that was possible in time."""
        self._stopping = True
        await self.voice.leave(reason)

    async def restate_again_and_again(self, every_s: float) -> None:
        """The first time comes at a moment of the id's own, so that replicas do not speak all at once."""
        await asyncio.sleep(every_s * int(self.voice.id, 16) / 2**64)
        while True:
            self.restate("the quarter of the retention time is over")
            await asyncio.sleep(every_s)

    def restate(self, why: str) -> None:
        """Who this is, what it decides by and what is in flight is said again."""
        self.say(self._joined)
        self.say_settings()
        self.voice.restate(self._flights.restated(why))

    def _new_voice(self) -> RoutingPublisher:
        return RoutingPublisher(
            self._around.namespace,
            self._around.log,
            self._around.clock,
            self._around.key,
            self._state,
            restate=self._restatement,
            on_superseded=self._on_superseded,
            journal=self._journal,
            journal_bytes=self._journal_bytes,
        )

    def _restatement(self) -> list[Event]:
        """Events were dropped, or the log does not end where we left it: who we are and all that counts now."""
        return [self._joined, self._live.event(), self._flights.restated("events of ours are missing")]

    def _on_superseded(self) -> None:
        if self._stopping:
            return
        before, self.voice = self.voice, self._new_voice()
        self.look.replica = self.voice.id
        self.begin()
        self.voice.restate(self._flights.restated(f"was {before.id}"))
        entry, self._entry = self._entry, RegistrationLease(self._around.registry, f"replicas/{self.voice.id}")
        self._spawn(self._settle(before, entry))
        self.on_new_id(self.voice.id)

    async def _settle(self, before: RoutingPublisher, entry: RegistrationLease) -> None:
        """The registry knows us as we are now."""
        await before.end()
        await self._register()
        await entry.remove()

    async def _register(self) -> None:
        about = {"id": self.voice.id, "name": self._joined.name, "address": self._joined.address}
        await self._entry.put({**about, **self._details})

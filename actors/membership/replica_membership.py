"""ReplicaMembership: a replica under its present id: its chain in the log, its key in the registry.

Another may write the end of a replica that lives. That stands, and the replica goes on at once under a new id with its
requests in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

from actors.membership.registration import RegistrationLease
from actors.membership.routing_publisher import RoutingPublisher
from core.clock import Clock
from core.events import Event, ReplicaJoined
from core.ids import ReplicaId
from core.keys import DeploymentKey
from projections.folds.state import State
from streams.log import EventLog
from streams.registry import Registry


class ReplicaMembership:
    """One publisher after another; `publisher` is the present one."""

    def __init__(
        self,
        namespace: str,
        log: EventLog,
        registry: Registry,
        clock: Clock,
        key: DeploymentKey,
        joined: ReplicaJoined,
        state: State,
        *,
        restate: Callable[[str], Sequence[Event]],
        journal: Path | None,
        journal_bytes: int,
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        """`restate` returns the replica's whole state but for `joined`, and is given the reason."""
        self._namespace = namespace
        self._log = log
        self._registry = registry
        self._clock = clock
        self._key = key
        self._joined = joined
        self._state = state
        self._restate = restate
        self._journal = journal
        self._journal_bytes = journal_bytes
        self._spawn = spawn
        self._details: dict[str, object] = {}
        self._stopping = False
        self.publisher = self._new_publisher()
        self._lease = self._new_lease()
        self.on_new_id: Callable[[ReplicaId], None] = lambda _: None
        """Called when the replica goes on under another id than before."""

    def __repr__(self) -> str:
        return f"<ReplicaMembership {self._joined.name} as {self.publisher!r}>"

    def join(self) -> None:
        """The first event of this replica is on its way to the log."""
        self.publisher.start(self._joined)

    async def register(self, details: dict[str, object]) -> None:
        """The registry knows us, or will when it is back; `details` go into it too."""
        self._details = details
        await self._register()

    def publish(self, event: Event) -> None:
        """The event counts now and goes to the log, in order."""
        self.publisher.publish(event)

    def restate(self, why: str) -> None:
        """The whole state goes to the log again."""
        self.publish(self._joined)
        self.publisher.restate(self._restate(why))

    async def leave(self, reason: str) -> None:
        """ReplicaLeft is in the log if that was possible in time; the registry forgets us, or will when it is back."""
        self._stopping = True
        try:
            await self.publisher.leave(reason)
        finally:
            await self._lease.remove()

    def _new_publisher(self) -> RoutingPublisher:
        return RoutingPublisher(
            self._namespace,
            self._log,
            self._clock,
            self._key,
            self._state,
            restate=self._restate_missing,
            on_superseded=self._rejoin,
            journal=self._journal,
            journal_bytes=self._journal_bytes,
        )

    def _new_lease(self) -> RegistrationLease:
        return RegistrationLease(self._registry, f"replicas/{self.publisher.id}")

    def _restate_missing(self) -> list[Event]:
        """Events were dropped, or the log does not end where we left it."""
        return [self._joined, *self._restate("events of ours are missing")]

    def _rejoin(self) -> None:
        """Lost is final: the same requests go on under a new id."""
        if self._stopping:
            return
        before, self.publisher = self.publisher, self._new_publisher()
        self.join()
        self.publisher.restate(self._restate(f"was {before.id}"))
        lease, self._lease = self._lease, self._new_lease()
        self._spawn(self._register_again(before, lease))
        self.on_new_id(self.publisher.id)

    async def _register_again(self, before: RoutingPublisher, lease: RegistrationLease) -> None:
        """The registry knows us under the new id, and forgets the one before."""
        await before.end()
        await self._register()
        await lease.remove()

    async def _register(self) -> None:
        about = {"id": self.publisher.id, "name": self._joined.name, "address": self._joined.address}
        await self._lease.put({**about, **self._details})

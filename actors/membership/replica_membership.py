"""ReplicaMembership: a replica in the log and in the registry, with its requests in flight."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

from actors.membership.decision_bases import DecisionBases
from actors.membership.membership import Membership
from actors.membership.routing_publisher import RoutingPublisher
from core.clock import Clock
from core.events import Event, ReplicaJoined
from core.keys import DeploymentKey
from projections.folds.state import State
from streams.log import EventLog
from streams.registry import Registry


class ReplicaMembership(Membership[RoutingPublisher]):
    """A new id has a new journal."""

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
        self.bases = DecisionBases()
        """Decisions of the log that new ones may continue."""
        self._namespace = namespace
        self._log = log
        self._clock = clock
        self._key = key
        self._joined = joined
        self._state = state
        self._restate = restate
        self._journal = journal
        self._journal_bytes = journal_bytes
        super().__init__(registry, "replicas", spawn)

    def join(self) -> None:
        """ReplicaJoined is on its way to the log."""
        self.publisher.start(self._joined)

    def publish(self, event: Event) -> None:
        """The event counts now and goes to the log, in order."""
        self.publisher.publish(event)

    def restate(self, why: str) -> None:
        """The whole state goes to the log again."""
        self.publish(self._joined)
        self.publisher.restate(self._restate(why))

    def on_joined(self, joined: ReplicaJoined) -> None:
        """Another replica joined. If it does not read the version of our decisions, our requests in flight are
        restated: it could not count those."""
        version = self.publisher.version_written
        if joined.routed_version < version:
            self.restate(f"replica {joined.name} does not read version {version} of decisions")

    def _resume(self, before: RoutingPublisher) -> None:
        self.join()
        self.publisher.restate(self._restate(f"was {before.id}"))

    def _registry_facts(self) -> Mapping[str, object]:
        return {"name": self._joined.name, "address": self._joined.address}

    def _new_publisher(self) -> RoutingPublisher:
        return RoutingPublisher(
            self._namespace,
            self._log,
            self._clock,
            self._key,
            self._state,
            self.bases,
            restate=self._restate_missing,
            on_superseded=self._rejoin,
            journal=self._journal,
            journal_bytes=self._journal_bytes,
        )

    def _restate_missing(self) -> list[Event]:
        """Events were dropped, or the log does not end where we left it."""
        return [self._joined, *self._restate("events of ours are missing")]

"""WorkerMembership: a worker in the log and in the registry, with its cache."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping

import msgspec
from msgspec import UNSET

from actors.kv_cache.cache_mirror import CacheMirror
from actors.membership.membership import Membership
from actors.membership.worker_publisher import WorkerPublisher
from core.clock import Clock
from core.events import Adapter, AdapterChange, WorkerJoined
from core.ids import WorkerId, new_id
from core.keys import DeploymentKey
from streams.log import EventLog
from streams.registry import Registry


class WorkerMembership(Membership[WorkerPublisher]):
    """A new id may have another kv stream."""

    def __init__(
        self,
        namespace: str,
        log: EventLog,
        registry: Registry,
        clock: Clock,
        key: DeploymentKey,
        joined: WorkerJoined,
        mirror: CacheMirror,
        *,
        partitions: int,
        jobs_open: Callable[[], int],
        on_rejoin: Callable[[], None],
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        """The kv stream in `joined` is chosen by the id; `on_rejoin` is called when the worker goes on under another
        one."""
        self._namespace = namespace
        self._log = log
        self._clock = clock
        self._key = key
        self._joined = joined
        self._mirror = mirror
        self._partitions = partitions
        self._jobs_open = jobs_open
        self._on_rejoin = on_rejoin
        super().__init__(registry, "workers", spawn)

    def join(self) -> None:
        """WorkerJoined is on its way to the log, with the cache if it is not empty."""
        self.publisher.start()

    def adapters_changed(self, event: AdapterChange, adapters: tuple[Adapter, ...]) -> None:
        """The event is on its way to the log. Restatements, and later ids of the worker, have these adapters."""
        self._joined = msgspec.structs.replace(self._joined, adapters=adapters or UNSET)
        joined = msgspec.structs.replace(self.publisher.joined, adapters=adapters or UNSET)
        self.publisher.adapters_changed(event, joined)

    def _resume(self, _before: WorkerPublisher) -> None:
        self.join()
        self._on_rejoin()

    def _registry_facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = msgspec.to_builtins(self.publisher.joined)
        del facts["type"]
        facts.pop("adapters", None)  # the log has them as they are now
        return facts

    def _new_publisher(self) -> WorkerPublisher:
        worker = WorkerId(new_id())
        return WorkerPublisher(
            self._namespace,
            self._log,
            self._clock,
            self._key,
            worker,
            msgspec.structs.replace(self._joined, partition=int(worker, 16) % self._partitions),
            self._mirror,
            jobs_open=self._jobs_open,
            on_superseded=self._rejoin,
        )

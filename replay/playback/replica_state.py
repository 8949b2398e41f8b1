"""ReplicaState: the knowledge of one replica at a moment, by the log: its fold, and its own local knowledge.

The view at a decision has three parts: stream by stream the fold up to the recorded cursor; the replica's own earlier
events that the cursor does not cover (`PendingEvents`); and its local knowledge of workers (`LocalChanged`). The
settings are those of its newest `SettingsChanged`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType

from core.errors import CallerError
from core.events import Event, LocalChanged, ReplicaRestated, SettingsChanged, UnknownEvent
from core.ids import ReplicaId, StreamName, WorkerId
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.pending_events import PendingEvents
from projections.folds.routing_fold import ReplicaPart
from projections.folds.state import State
from projections.policy.view import View

UNKNOWN = "unknown"


class ReplicaState:
    """The fold, pending events, local knowledge and settings of one replica."""

    def __init__(self, replica: ReplicaId, state: State) -> None:
        """Local knowledge and settings are those of the fold; `apply_own` adds later events."""
        self.replica = replica
        self.state = state
        self.pending_events = PendingEvents()
        self.settings = RoutingSettings()
        self.revision = 0
        self.unverifiable: dict[str, str] = {}
        """Reasons, by kind, why its decisions cannot be judged by the fold; empty if they can."""
        self.cut: Mapping[StreamName, str] = MappingProxyType({})
        """Streams folded from behind their start, each with a sentence: sources silent since then are unknown."""
        self.settings_known = False
        self.unread_restatement = 0
        """The place of its newest restatement until its fold has that; else 0."""
        self._own_events: deque[tuple[int, Event]] = deque()
        """The pending events, each with its sequence in the routing stream."""
        self._is_incomplete = replica in state.routing.unknown
        """True if its fold may lack earlier events of the replica itself."""
        self._local: dict[WorkerId, tuple[str, ...]] = {}
        self._by_reason: Mapping[str, frozenset[WorkerId]] | None = MappingProxyType({})
        part = self.part
        if part is not None:
            self._local.update(part.local)
            self._by_reason = None
            if part.settings or part.settings_revision:
                self._set(part.settings, part.settings_revision)

    def __repr__(self) -> str:
        return f"<ReplicaState of {self.replica} at {self.state!r}>"

    @property
    def part(self) -> ReplicaPart | None:
        """This replica's part of the fold."""
        return self.state.routing.replicas.get(self.replica)

    @property
    def view(self) -> View:
        """The view of the replica's next decision; valid until the next `move_to` or `apply_own`."""
        if self._by_reason is None:
            self._by_reason = _by_reason(self._local)
        return View(self.state, self.replica, self.pending_events, self._by_reason)

    def apply_own(self, seq: int, event: Event | UnknownEvent) -> None:
        """An event of the replica itself, in its message at `seq` of the routing stream, is applied; in order."""
        match event:
            case SettingsChanged():
                self._set(event.settings, event.revision)
            case LocalChanged():
                self._local.pop(WorkerId(event.worker), None)
                if event.reasons:
                    self._local[WorkerId(event.worker)] = event.reasons
                self._by_reason = None
            case ReplicaRestated():
                self._local.clear()
                self._by_reason = None
                self.unverifiable.pop(UNKNOWN, None)
                self.unread_restatement = seq
            case UnknownEvent():
                return
            case _:
                pass  # changes nothing that only this replica has
        at = self.state.cursor.get(ROUTING)
        if at is None or seq > at.seq:
            self.pending_events.emit(event, self.part)
            self._own_events.append((seq, event))
        else:
            self._note_read(at.seq)

    def note_missing(self, seq: int) -> None:
        """A message of the replica before the one at `seq` is missing; its events counted in the replica at once."""
        self.unverifiable[UNKNOWN] = f"a message of {self.replica} before {ROUTING}:{seq} is missing"

    def move_to(self, state: State, cut: Mapping[StreamName, str] = MappingProxyType({})) -> None:
        """The replica's fold is `state`, which is in no stream behind the one before; events that it covers are
        pending no more."""
        self.state = state
        self.cut = cut
        at = state.cursor.get(ROUTING)
        self._note_read(at.seq if at is not None else 0)
        while at is not None and self._own_events and self._own_events[0][0] <= at.seq:
            self.pending_events.read_back(self._own_events.popleft()[1])
        was_incomplete, self._is_incomplete = (
            self._is_incomplete,
            ROUTING in cut or self.replica in state.routing.unknown,
        )
        if was_incomplete and not self._is_incomplete:
            # a snapshot may have requests in flight that the fold before lacked when their ends were applied
            self.pending_events.refold((), self.part)

    def _note_read(self, seq: int) -> None:
        if seq >= self.unread_restatement:
            self.unread_restatement = 0

    def _set(self, settings: Mapping[str, object], revision: int) -> None:
        self.revision = revision
        self.settings_known = True
        try:
            self.settings = RoutingSettings.parse(settings)
        except CallerError as error:
            self.unverifiable["settings"] = f"revision {revision} cannot be read by this program: {error}"
        else:
            self.unverifiable.pop("settings", None)


def _by_reason(local: Mapping[WorkerId, tuple[str, ...]]) -> dict[str, frozenset[WorkerId]]:
    found: dict[str, set[WorkerId]] = {}
    for worker, reasons in local.items():
        for reason in reasons:
            found.setdefault(reason, set()).add(worker)
    return {reason: frozenset(workers) for reason, workers in found.items()}

"""ReplicaState: what one replica knew at a moment: its fold, and what it alone knew, as the log has it.

The view at a decision is, stream by stream, the fold up to the recorded cursor, plus the replica's own earlier events
that the cursor does not cover (`PendingEvents`), plus what only it knew of workers (`LocalChanged`), under the settings
that it had said last (`SettingsChanged`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType

from core.errors import CallerError
from core.events import Event, LocalChanged, ReplicaRestated, SettingsChanged, UnknownEvent
from core.ids import Epoch, ReplicaId, StreamName, WorkerId
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.pending_events import PendingEvents
from projections.folds.routing_fold import ReplicaPart
from projections.folds.state import State
from projections.policy.view import View
from replay.recording.recording import RecordedFrame

UNKNOWN = "unknown"


class ReplicaState:
    """See the module's text."""

    def __init__(self, replica: ReplicaId, state: State) -> None:
        """Its local knowledge and settings are those of the fold; `apply_own` adds later events."""
        self.replica = replica
        self.state = state
        self.ahead = PendingEvents()
        self.settings = RoutingSettings()
        self.revision = 0
        self.doubts: dict[str, str] = {}
        """Why its decisions cannot be judged by the fold, by kind; empty if they can."""
        self.cut: Mapping[StreamName, str] = MappingProxyType({})
        """Streams that are folded from behind their start: sources that were silent since are not known at all."""
        self.settings_known = False
        self._own_events: deque[tuple[int, Event]] = deque()
        """What is ahead, and where it stands in the routing stream."""
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
        """What the fold has of this replica."""
        return self.state.routing.replicas.get(self.replica)

    @property
    def view(self) -> View:
        """What the replica's next decision sees; valid until the next `move_to` or `apply_own`."""
        if self._by_reason is None:
            self._by_reason = _by_reason(self._local)
        return View(self.state, self.replica, self.ahead, self._by_reason)

    def apply_own(self, seq: int, event: Event | UnknownEvent) -> None:
        """The replica said this, in its message at `seq` of the routing stream; in its own order."""
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
                self.doubts.pop(UNKNOWN, None)
            case UnknownEvent():
                return
            case _:
                pass  # changes nothing that only this replica has
        at = self.state.cursor.get(ROUTING)
        if at is None or seq > at.seq:
            self.ahead.emit(event, self.part)
            self._own_events.append((seq, event))

    def note_missing(self, seq: int) -> None:
        """The replica had said something before its message at `seq` that is not here: it counted there at once."""
        self.doubts[UNKNOWN] = f"a message of {self.replica} before {ROUTING}:{seq} is missing"

    def take(self, frame: RecordedFrame) -> None:
        """The next message of a stream is folded."""
        stream, seq, _, owner, head, message = frame
        self.state.fold(stream, seq, owner, message, head)
        if stream == ROUTING and owner == self.replica:
            self._read_back(seq)

    def move_to(self, state: State, cut: Mapping[StreamName, str] = MappingProxyType({})) -> None:
        """The replica has folded this, which is nowhere behind what it had folded before."""
        self.state = state
        self.cut = cut
        at = state.cursor.get(ROUTING)
        if at is not None:
            self._read_back(at.seq)

    def open(self, stream: StreamName, epoch: int) -> int:
        """The last sequence of the stream that is folded."""
        return self.state.open(stream, Epoch(epoch))

    def _read_back(self, seq: int) -> None:
        """What stands in the routing stream up to there is folded, and no longer ahead."""
        said = self._own_events
        while said and said[0][0] <= seq:
            self.ahead.read_back(said.popleft()[1])

    def _set(self, settings: Mapping[str, object], revision: int) -> None:
        self.revision = revision
        self.settings_known = True
        try:
            self.settings = RoutingSettings.parse(settings)
        except CallerError as error:
            self.doubts["settings"] = f"revision {revision} cannot be read by this program: {error}"
        else:
            self.doubts.pop("settings", None)


def _by_reason(local: Mapping[WorkerId, tuple[str, ...]]) -> dict[str, frozenset[WorkerId]]:
    found: dict[str, set[WorkerId]] = {}
    for worker, reasons in local.items():
        for reason in reasons:
            found.setdefault(reason, set()).add(worker)
    return {reason: frozenset(workers) for reason, workers in found.items()}

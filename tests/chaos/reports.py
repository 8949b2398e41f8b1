"""What replicas reported of their folds, compared with each other and with the log folded again."""

from __future__ import annotations

from collections import defaultdict

from core.events import DivergenceFound, ReplicaReported
from core.ids import COLUMN_WIDTH
from tests.chaos.record import SHOWN_MAX, LogRecord

HEAD_WIDTH = 16


class Reports:
    """All points that replicas ever reported."""

    def __init__(self, record: LogRecord) -> None:
        self._said: dict[tuple[int, str, int, int], dict[str, int]] = defaultdict(dict)
        """By fold version, stream, epoch and sequence: digest by replica."""
        self._heads: list[tuple[str, str, int, bytes]] = []
        self._record = record
        self.alarms = [event for _, event in record.events() if isinstance(event, DivergenceFound)]
        for entry, event in record.events():
            if isinstance(event, ReplicaReported):
                self._note(entry.owner, event)

    @property
    def compared(self) -> int:
        """At how many points two replicas or more have reported."""
        return sum(len(said) > 1 for said in self._said.values())

    @property
    def points(self) -> int:
        """How many points were reported."""
        return len(self._heads)

    def _note(self, replica: str, event: ReplicaReported) -> None:
        for stream, points in event.points.items():
            for place, seq in enumerate(points.seqs):
                digest = int.from_bytes(points.digests[place * COLUMN_WIDTH : (place + 1) * COLUMN_WIDTH], "little")
                self._said[event.fold_version, stream, points.epoch, seq][replica] = digest
                head = points.heads[place * HEAD_WIDTH : (place + 1) * HEAD_WIDTH]
                self._heads.append((replica, stream, seq, head))

    def differences(self) -> list[str]:
        """All digests are equal at every agreed cursor."""
        wrong = [f"{at}: {said}" for at, said in self._said.items() if len(set(said.values())) > 1]
        return [f"{len(wrong)} points where replicas differ: {wrong[:SHOWN_MAX]}"] if wrong else []

    def heads_unknown(self) -> list[str]:
        """The message that a replica had read at a point is the one that the log holds there."""
        held = {(entry.stream, entry.seq): entry.head for entry in self._record.entries}
        wrong = [f"{stream}:{seq} of {by}" for by, stream, seq, head in self._heads if held.get((stream, seq)) != head]
        return [f"{len(wrong)} reported heads that the log has not: {wrong[:SHOWN_MAX]}"] if wrong else []

    def divergences(self) -> list[str]:
        """Nobody found a difference."""
        return [f"DivergenceFound: {alarm}" for alarm in self.alarms[:SHOWN_MAX]]

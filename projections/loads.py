"""LoadProjection: the newest load report of each worker."""

from __future__ import annotations

from core.codec import Message
from core.events import LoadReported, UnknownEvent
from core.ids import SourceId, WorkerId
from projections.chain import Chain, Link
from projections.projection import MASK64, mix


class LoadProjection:
    """The fold of the load stream. A report stands alone, so a gap before it makes nothing void."""

    def __init__(self) -> None:
        self.reports: dict[WorkerId, LoadReported] = {}
        self.unknown_events = 0
        self.incomplete = 0
        self._chains: dict[WorkerId, Chain] = {}
        self._digest = 0

    def __repr__(self) -> str:
        return f"<LoadProjection {len(self.reports)} workers, digest {self._digest:016x}>"

    @property
    def digest(self) -> int:
        return self._digest

    def apply(self, owner: str, message: Message, digest: bytes) -> bool:
        """Folds one message of the worker `owner`."""
        worker = WorkerId(owner)
        if message.source != SourceId(worker):
            return False
        chain = self._chains.setdefault(worker, Chain())
        before = mix(worker, chain.n_next, chain.head) if chain.n_next else 0
        if chain.follow(message, digest) is Link.REPEAT:
            return False
        for event in message.events:
            if isinstance(event, LoadReported):
                self.reports[worker] = event
            elif isinstance(event, UnknownEvent):
                self.unknown_events += 1
        # the head covers every byte that was ever reported
        self._digest = (self._digest - before + mix(worker, chain.n_next, chain.head)) & MASK64
        return True

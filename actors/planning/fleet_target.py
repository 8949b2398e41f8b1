"""FleetTarget: the number of workers that a planner wants, in the registry, for the program that starts workers.

A target names its decision in the scale stream, which stands there before. Who follows it keeps the newest one, by
fence and decision: a planner that has lost its lead may write late.
"""

from __future__ import annotations

import msgspec

from core.errors import PeerError

TARGET_KEY = "planner/target"
COUNT_MAX = 8192
"""Workers of a target, overdue ones included."""


class FleetTarget(msgspec.Struct, frozen=True):
    """Another process wrote it: read by `parse` only."""

    fence: int
    """The revision at which the planner became the leading one."""
    decision: int
    """Sequence of the decision's message in the scale stream."""
    group: str
    """The worker group that is to have …"""
    workers: int
    """… so many workers, those that start included."""

    @property
    def order(self) -> tuple[int, int]:
        """Of two targets the one with the higher order counts."""
        return self.fence, self.decision

    def encode(self) -> bytes:
        """The value in the registry."""
        return msgspec.json.encode(self)

    @staticmethod
    def parse(value: bytes) -> FleetTarget:
        """The target in a value of the registry. PeerError if it is none."""
        try:
            target = _decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PeerError(f"no target of a planner: {error}") from error
        if not 0 <= target.workers <= COUNT_MAX:
            raise PeerError(f"no target of a planner: {target.workers} workers")
        return target


_decoder = msgspec.json.Decoder(FleetTarget)

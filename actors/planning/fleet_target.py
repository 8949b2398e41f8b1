"""FleetTarget: the number of workers that a planner wants, in the registry, for the program that starts workers.

A target names its decision in the scale stream, which stands there before. A program that follows targets, a hand,
keeps the newest one, by fence and decision: a planner that has lost its lead may write late. It acknowledges each one.

Where the planner sizes one group there is one key of each kind. Of several groups, each has its own below these.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from core.errors import PeerError
from streams.registry import Change, Registry

TARGET_KEY = "planner/target"
ACKNOWLEDGED_KEY = "planner/acknowledged"
COUNT_MAX = 8192
"""Workers of a target or of an acknowledgement."""
ERROR_CHARS_MAX = 500
"""Of an acknowledgement; the rest is cut off."""
NO_ORDER = (-1, -1)

_logger = logging.getLogger(__name__)


class FleetKeys(NamedTuple):
    """Of the target and of its acknowledgement, in the registry."""

    target: str = TARGET_KEY
    acknowledged: str = ACKNOWLEDGED_KEY

    @staticmethod
    def of(group: str) -> FleetKeys:
        """Those of one of several groups."""
        return FleetKeys(f"{TARGET_KEY}/{group}", f"{ACKNOWLEDGED_KEY}/{group}")


ONLY_GROUP = FleetKeys()
"""Of a planner that sizes one group."""


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
            target = _targets.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PeerError(f"no target of a planner: {error}") from error
        if not 0 <= target.workers <= COUNT_MAX:
            raise PeerError(f"no target of a planner: {target.workers} workers")
        return target


class FleetAcknowledgement(msgspec.Struct, frozen=True):
    """The answer of a hand to a target. Another process wrote it: read by `parse` only."""

    fence: int
    """Of the target …"""
    decision: int
    """… that the hand has carried out, or cannot."""
    workers: int
    """Workers that the hand has now, those that start included."""
    error: str = ""
    """The fault for which the target is not reached; empty if it was carried out."""

    def encode(self) -> bytes:
        """The value in the registry."""
        return msgspec.json.encode(self)

    @staticmethod
    def parse(value: bytes) -> FleetAcknowledgement:
        """The acknowledgement in a value of the registry, with at most ERROR_CHARS_MAX of its error. PeerError if it is
        none."""
        try:
            found = _acknowledgements.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PeerError(f"no acknowledgement of a target: {error}") from error
        if not 0 <= found.workers <= COUNT_MAX:
            raise PeerError(f"no acknowledgement of a target: {found.workers} workers")
        return msgspec.structs.replace(found, error=found.error[:ERROR_CHARS_MAX])


class TargetFollower:
    """The newest target of one group, as a hand has to follow it, and the hand's last acknowledgement."""

    def __init__(self, group: str, most: int, least: int = 1, keys: FleetKeys = ONLY_GROUP) -> None:
        """The goal is at most `most`, and at least `least`."""
        self.keys = keys
        self.target: FleetTarget | None = None
        """None before the first one, and while the registry has none."""
        self._group = group
        self._most = most
        self._least = least
        self._order = NO_ORDER
        self._revision = 0
        """Of the registry, at the target."""
        self._acknowledged: FleetAcknowledgement | None = None

    def __repr__(self) -> str:
        return f"<TargetFollower of {self._group}: {self.target}>"

    @property
    def goal(self) -> int | None:
        """Number of workers of the target, within the least and the most; None without a target."""
        return None if self.target is None else min(max(self.target.workers, self._least), self._most)

    def take(self, change: Change) -> bool:
        """The target in the change counts; False if it is no target of the group, or an older one, which is logged.

        A registry without a target, or with a lower revision, has lost its data: its counter begins anew.
        """
        if change.key != self.keys.target:
            return False
        if change.value is None or change.revision < self._revision:
            self.target, self._order, self._revision = None, NO_ORDER, 0
        if change.value is None:
            return False
        try:
            target = FleetTarget.parse(change.value)
        except PeerError as error:
            _logger.error("%s", error)  # noqa: TRY400  # its text has all
            return False
        if target.group != self._group or target.order < self._order:
            _logger.warning("a target of a planner is not followed: %s", target)
            return False
        self.target, self._order, self._revision = target, target.order, change.revision
        return True

    async def acknowledge(self, registry: Registry, workers: int, error: str = "") -> None:
        """The registry has the answer to the present target, unless it had the same before. PeerError if the registry
        is away."""
        if self.target is None:
            return
        answer = FleetAcknowledgement(*self.target.order, workers, error[:ERROR_CHARS_MAX])
        if answer != self._acknowledged:
            await registry.put(self.keys.acknowledged, answer.encode())
            self._acknowledged = answer


_targets = msgspec.json.Decoder(FleetTarget)
_acknowledgements = msgspec.json.Decoder(FleetAcknowledgement)

"""ScaleExplanation: all that the log has on one decision on the size of the fleet. Its keys are those of JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from core.events.scale import CapacityLearned, DemandRolled, ScaleApplied, ScaleDecided, ScaleFailed

EQUAL, DIFFERENT, NOT_JUDGED = "equal", "different", "not judged"


class ScaleWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The earlier decisions that a fleet does not shrink below: those of the last `down_window_s`."""

    required: int
    """Most workers that one of them required; 0 without any."""
    is_full: bool
    """They reach back to the window's start. Before that no fleet shrinks."""
    regretted: int
    """Workers below which the fleet fell in the last hour, to rise again; 0 for none."""


class ScaleOutcome(msgspec.Struct, kw_only=True):
    """Events behind a decision that belong to it."""

    orders: list[int] = msgspec.field(default_factory=list)
    """Numbers of the workers that it ordered."""
    applied: ScaleApplied | None = None
    """None if it ordered and drained nothing."""
    failures: list[ScaleFailed] = msgspec.field(default_factory=list)
    """Of its orders; those of no order until the next decision."""
    reached_ms: int | None = None
    """Time of the first later decision at which as many workers were ready as the target; None if there is none before
    another target."""
    changed_ms: int | None = None
    """Time of the first later decision with another target; None if none was read …"""
    changed_to: int | None = None
    """… and that target."""


class ScaleExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's text."""

    seq: int
    """Of the decision's message in the scale stream."""
    time: str
    """The decision's own, as text."""
    summary: list[str]
    """Sentences: the reason, what came of it, and the result of making it again."""
    verdict: str
    """EQUAL, DIFFERENT or NOT_JUDGED."""
    reason: str
    """Of no judgement: `cut` or `version` (`replay.verify.scale_checks`). Of a difference the first field that differs.
    Else empty."""
    remade: ScaleDecided | None
    """The decision made again, if it comes out otherwise."""
    decided: ScaleDecided
    demand: DemandRolled | None
    """The newest period before it; None if the log begins behind that."""
    capacity: CapacityLearned | None
    """None if the log begins behind the event."""
    settings: dict[str, Any] | None
    """As a file has them; None if the log begins behind the event with them."""
    window: ScaleWindow | None
    """None if the log begins behind the capacity."""
    outcome: ScaleOutcome


def as_objects(value: Any) -> Any:
    """The value with structs as objects, also where the log has them as arrays."""
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return {name: as_objects(each) for name, each in fields.items() if each is not msgspec.UNSET}
    if isinstance(value, list | tuple):
        return [as_objects(each) for each in value]
    return value

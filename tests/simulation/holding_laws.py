"""Laws of requests that replicas hold until a worker is free; see `tests.simulation.invariants`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from core.codec import decode_message
from core.events import Event, RequestFinished, RequestRejected, RequestRouted, UnknownEvent
from core.events.routing import HELD, RequestQueued, RequestTurnedAway
from core.ids import ReplicaId
from core.subjects import ROUTING, owner
from tests.simulation.prefill_laws import CLOCK_S
from tests.simulation.witness import Broken

if TYPE_CHECKING:
    from tests.simulation.world import World

HELD_MAX_MS = 5000
"""The setting `hold_max_ms` is never longer in a world."""
DECLINED = "declined"


class Hold(NamedTuple):
    """One request that was held, and what ended that, if anything did."""

    by: ReplicaId
    queued: RequestQueued
    end: RequestRouted | RequestRejected | RequestTurnedAway | None

    @property
    def lasted_ms(self) -> int:
        """So long, as its replica says; 0 if it still does."""
        match self.end:
            case None:
                return 0
            case RequestTurnedAway(waited_ms=waited_ms):
                return waited_ms
            case _:
                return self.end.now_ms - self.queued.now_ms


def holds(world: World) -> list[Hold]:
    """All that the log tells of."""
    found: dict[tuple[ReplicaId, str], Hold] = {}
    for by, event in _events(world):
        if isinstance(event, RequestQueued) and event.why == HELD:
            found[by, event.request] = Hold(by, event, None)
        elif isinstance(event, RequestRouted | RequestRejected | RequestTurnedAway):
            hold = found.get((by, event.request))
            if hold is not None and hold.end is None:
                found[by, event.request] = hold._replace(end=event)
    return list(found.values())


def everybody_held_goes_on(world: World) -> None:
    """At rest nobody is held by a replica that lives, and nobody was for longer than may be.

    Not if its outbox overflowed, or its end was written by others though it lived.
    """
    if not world.witness.history_kept or world.options.pending_events_max:
        return
    steady = {part.first_id for part in world.replicas.values() if part.router.publisher.id == part.first_id}
    for hold in holds(world):
        if hold.end is None and hold.by in steady:
            raise Broken(f"{hold.queued.request} is held by {hold.by}, which rests")
        if hold.lasted_ms > HELD_MAX_MS + CLOCK_S * 1000:
            raise Broken(f"{hold.queued.request} was held for {hold.lasted_ms} ms: {hold.end}")


def count_holds(world: World) -> None:
    """The witness saw how many were held and declined, as the log tells."""
    for hold in holds(world):
        world.witness.saw("held", hold.queued.request)
    for _, event in _events(world):
        if isinstance(event, RequestFinished) and event.outcome == DECLINED:
            world.witness.saw("declined", event.request)


def _events(world: World) -> Iterator[tuple[ReplicaId, Event | UnknownEvent]]:
    for record in world.stream(ROUTING).from_seq(1):
        if record.payload not in world.witness.made:
            for event in decode_message(record.payload).events:
                yield ReplicaId(owner(record.subject)), event

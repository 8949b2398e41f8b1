"""Stay: one life of a worker, as it is told to a simulation: in which place of the fleet, from when to when."""

from __future__ import annotations

from typing import NamedTuple

FOREVER = -1


class Stay(NamedTuple):
    """All times are virtual microseconds since the start of the run."""

    place: int
    """In the fleet, from 0. Several lives may follow each other in one place."""
    from_us: int = 0
    until_us: int = FOREVER
    """When it ends."""
    told_us: int = FOREVER
    """When the log hears that it was lost; FOREVER for one that leaves by itself: it gets nothing new from its end on,
    and ends what it has."""
    capacity_blocks: int = 0
    """Of its cache; 0 for those of `Options.engine`."""

"""Doubts: why a recording may not show what a replica saw when it decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from core.events import RequestRejected, RequestRouted
from core.events.routing import DECIDE_VERSION
from core.ids import StreamName, from_column
from core.subjects import JOBS, ROUTING
from replay.lacks import CUT, Lacks
from replay.lanes import Track
from replay.recording import Recording
from replay.seat import Seat

CLOCKS_MS = 5000
"""How far a replica's clock may be from the log's."""


def doubts_of(
    seat: Seat,
    event: RequestRouted | RequestRejected,
    track: Track,
    lacks: Lacks,
    agreed: Mapping[StreamName, int] = MappingProxyType({}),
) -> dict[str, str]:
    """Kind to one sentence, for what the seat's replica says now; empty if nothing is known to be wrong. Some 3 us.

    `agreed`: up to where the replica itself said that its folds were as ours (`replay.verifying.agreements`)."""
    doubts = dict(seat.doubts)
    if isinstance(event, RequestRouted) and event.decide_version != DECIDE_VERSION:
        doubts["version"] = (
            f"decided by version {event.decide_version} of the program's rules; this is {DECIDE_VERSION}"
        )
    if seat.revision != event.settings_revision:
        doubts["settings"] = f"revision {event.settings_revision} of the settings is not here"
    cursor = {name: at for name, at in event.cursor.items() if name != JOBS}  # no decision rests on jobs
    for name, (epoch, seq) in cursor.items():
        stream = StreamName(name)
        if track.epochs.get(stream) != epoch:
            doubts["replaced"] = f"{stream} was made anew: the history of its epoch {epoch} is not here"
        elif seq > track.ends[stream]:
            doubts["end"] = f"{stream}:{seq} was read by then, and the recording ends at {track.ends[stream]}"
    if seat.cut or seat.state.incomplete:
        doubts.update(_half_known(seat, event, lacks, agreed))
    if lacks.all:
        doubts.update(lacks.at(cursor, agreed))
    return doubts


def rolled_back(recording: Recording, event: RequestRouted | RequestRejected, time_ms: int) -> str:
    """One sentence if the cursor names a message that was stored only after the decision: then the log had lost what
    the replica had read, and used its places again. Empty if nothing shows that. Reads a block or two."""
    for name, (_, seq) in event.cursor.items():
        stream = StreamName(name)
        record = recording.archive.at(stream, seq) if stream in recording.streams else None
        if record is not None and record.time_ms > min(time_ms, event.now_ms + CLOCKS_MS):
            return f"{stream}:{seq} was read by then, and what stands there was stored later: history was replaced"
    return ""


def _half_known(
    seat: Seat, event: RequestRouted | RequestRejected, lacks: Lacks, agreed: Mapping[StreamName, int]
) -> Iterator[tuple[str, str]]:
    """What the fold itself knows to be missing; but for sources of which the record shows that the replica knew it too:
    then it is what was decided on."""
    for cut, how in seat.cut.items():
        if cut not in agreed and cut != JOBS:
            yield CUT, how
    if ROUTING in seat.cut and not seat.settings_known:
        yield "settings", f"the settings of {seat.replica} were said before the recording begins"
    admitted = _recorded_as_unknown(event)
    for stream, kv in seat.state.kv.items():
        for worker in sorted(kv.unknown - admitted):
            yield lacks.kind(stream, worker), f"the cache of worker {worker} is not known until it restates it"
    for replica in sorted(seat.state.routing.unknown):
        if replica == seat.replica:
            yield "unknown", f"a message of {replica} is missing, and it has not restated itself since"
        else:
            kind = CUT if ROUTING in seat.cut else lacks.kind(ROUTING, replica)
            yield kind, f"what replica {replica} has in flight is not known until it restates it"


def _recorded_as_unknown(event: RequestRouted | RequestRejected) -> set[str]:
    if not isinstance(event, RequestRouted):
        return set()
    known = event.columns.get("known", ())
    return {worker for worker, at in zip(from_column(event.candidates), known, strict=False) if not at}

"""ReplicaComparison: the first place at which two replicas reported different folds, which of them had another fold
than the log, and the messages in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import msgspec

from core.codec import decode_message
from core.errors import CallerError, Corrupt
from core.event_json import hash_text
from core.events import DivergenceFound
from core.ids import ReplicaId, StreamName, StreamSeq
from core.subjects import ROUTING, owner
from replay.bisect.first_difference import FirstDifference, find_first_difference
from replay.parallel import Progress
from replay.playback.fold_reports import FoldReport
from replay.recording.gaps import Gaps
from replay.recording.recording import Recording
from replay.verify.evidence import LogFolds, fold_reports
from streams.archive.message_envelope import envelope

MESSAGES_MAX = 20
"""Messages between two points that are told."""
FOUND = DivergenceFound.__name__.encode()
ReportPlace = tuple[StreamName, int, StreamSeq]
"""Stream, epoch and sequence."""
ReportsByPlace = Mapping[ReportPlace, FoldReport]
"""A digest that one replica reported."""


class MessageBetween(msgspec.Struct, frozen=True, kw_only=True):
    """A message that one of the two took otherwise than the other."""

    seq: int
    time_ms: int
    source: str
    n: int
    events: list[str]


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """A divergence that a replica itself found (`DivergenceFound`)."""

    seq: int
    """Message of the routing stream with its report."""
    replica: str
    other: str
    stream: str
    at_seq: int
    verdict: str


class StreamComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One stream, as the two folded it."""

    stream: str
    compared: int
    """Places that both reported."""
    last_equal: int
    """The last of them at which both were equal before they parted; 0 for none."""
    first_different: int
    """The first at which they were not; 0 for none."""
    digests: dict[str, str]
    """There: by replica, and `log` for what the log gives; empty if they are equal."""
    wrong: list[str]
    """Replicas that had something else than the log gives."""
    history: bool
    """The two replicas had read different messages there."""
    between: list[MessageBetween]
    """The first MESSAGES_MAX messages behind the last equal place, up to the first different one."""
    between_total: int


class EarlierRunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two earlier lives of the same names, of which only the reports are compared."""

    replicas: dict[str, str]
    """Id to name."""
    compared: int
    """Places that both reported."""
    part: bool
    """They reported different digests at one of these places."""


class ReplicaComparison(msgspec.Struct, frozen=True, kw_only=True):
    """All differences between two replicas."""

    replicas: dict[str, str]
    """Id to name, of the two lives that are compared."""
    others: list[EarlierRunComparison]
    """All other pairs of lives of these names that reported a place in common, the latest first."""
    streams: list[StreamComparison]
    divergences: list[Divergence]
    departure: FirstDifference | None
    """The first decision of either that does not follow from the log."""

    @property
    def part(self) -> bool:
        """The two differ from each other, one differs from the log, or earlier lives of their names differ."""
        streams = any(stream.first_different for stream in self.streams)
        return self.departure is not None or streams or any(each.part for each in self.others)


def compare_replicas(
    recording: Recording,
    first: str,
    second: str,
    start: int = 1,
    end: int | None = None,
    *,
    gaps: Gaps | None = None,
    progress: Progress = lambda _done, _of: None,
) -> ReplicaComparison:
    """Two replicas by name or id; of several lives the latest two, and in short the others that reported a place in
    common. CallerError if one is not known."""
    reports: dict[ReplicaId, dict[ReportPlace, FoldReport]] = {}
    for each in fold_reports(recording):
        if start <= each.at < (end or each.at + 1):
            reports.setdefault(each.replica, {})[each.stream, each.epoch, each.seq] = each
    (one, other), *others = _pairs(recording, first, second, _last_messages(recording, start, end))
    streams = _streams(recording, reports.get(one, {}), reports.get(other, {}))
    return ReplicaComparison(
        replicas=_names(recording, one, other),
        others=[_others(recording, *each, reports) for each in others if _common(reports, *each)],
        streams=streams,
        divergences=[each for each in _divergences(recording) if {each.replica, each.other} & {one, other}],
        departure=find_first_difference(recording, start, end, replicas={one, other}, gaps=gaps, progress=progress),
    )


def _pairs(
    recording: Recording, first: str, second: str, last_messages: Mapping[str, int]
) -> list[tuple[ReplicaId, ReplicaId]]:
    """Of every life of the one and every life of the other; first those of which both sent messages last."""
    ours, theirs = (sorted(recording.names.replicas_called(name)) for name in (first, second))
    pairs = list({frozenset(pair): pair for pair in product(ours, theirs) if pair[0] != pair[1]}.values())
    if not pairs:
        raise CallerError(f"{first!r} and {second!r} are one and the same replica: name two")
    return sorted(pairs, key=lambda pair: min(last_messages.get(life, 0) for life in pair), reverse=True)


def _last_messages(recording: Recording, start: int, end: int | None) -> dict[str, int]:
    """By replica, its last message in the routing stream."""
    found: dict[str, int] = {}
    for record in recording.archive.read(ROUTING, start, end) if ROUTING in recording.streams else ():
        message, replica = envelope(record.payload), owner(record.subject)
        if message is not None and message.source == replica:  # else another source wrote its end
            found[replica] = record.seq
    return found


def _others(
    recording: Recording, one: ReplicaId, other: ReplicaId, reports: Mapping[ReplicaId, ReportsByPlace]
) -> EarlierRunComparison:
    common = _common(reports, one, other)
    return EarlierRunComparison(
        replicas=_names(recording, one, other),
        compared=len(common),
        part=any(reports[one][place].digest != reports[other][place].digest for place in common),
    )


def _common(reports: Mapping[ReplicaId, ReportsByPlace], one: ReplicaId, other: ReplicaId) -> set[ReportPlace]:
    """Places that both reported."""
    return reports.get(one, {}).keys() & reports.get(other, {}).keys()


def _names(recording: Recording, *replicas: ReplicaId) -> dict[str, str]:
    return {replica: recording.names.replica(replica) for replica in replicas}


def _streams(recording: Recording, ours: ReportsByPlace, theirs: ReportsByPlace) -> list[StreamComparison]:
    common: dict[StreamName, list[StreamSeq]] = {stream: [] for stream in recording.streams}
    for stream, epoch, seq in ours.keys() & theirs.keys():
        if stream in common and recording.archive.span(stream).epoch == epoch:
            common[stream].append(seq)
    found = []
    for stream, seqs in common.items():
        epoch = recording.archive.span(stream).epoch
        pairs = [(ours[stream, epoch, seq], theirs[stream, epoch, seq]) for seq in sorted(seqs)]
        found.append(_stream(recording, stream, pairs))
    return found


def _stream(recording: Recording, stream: StreamName, pairs: list[tuple[FoldReport, FoldReport]]) -> StreamComparison:
    equal = [one.seq for one, other in pairs if one.digest == other.digest]
    apart = next(((one, other) for one, other in pairs if one.digest != other.digest), None)
    if apart is None:
        return StreamComparison(
            stream=stream, compared=len(pairs), last_equal=equal[-1] if equal else 0, first_different=0, digests={},
            wrong=[], history=False, between=[], between_total=0,
        )  # fmt: skip
    one, other = apart
    last_equal = max((seq for seq in equal if seq < one.seq), default=StreamSeq(0))
    log = LogFolds(recording, {stream: {one.seq}}).at(stream, one.seq)
    digests = {str(one.replica): hash_text(one.digest), str(other.replica): hash_text(other.digest)}
    if log is not None:
        digests["log"] = hash_text(log.digest)
    messages = list(_between(recording, stream, last_equal, one.seq))
    return StreamComparison(
        stream=stream,
        compared=len(pairs),
        last_equal=last_equal,
        first_different=one.seq,
        digests=digests,
        wrong=[str(each.replica) for each in apart if log is not None and each.digest != log.digest],
        history=one.head != other.head,
        between=messages[:MESSAGES_MAX],
        between_total=len(messages),
    )


def _between(recording: Recording, stream: StreamName, start: int, end: int) -> list[MessageBetween]:
    return [
        MessageBetween(
            seq=frame.seq,
            time_ms=frame.time_ms,
            source=frame.message.source,
            n=frame.message.n,
            events=[type(event).__name__ for event in frame.message.events],
        )
        for frame in recording.frames(stream, start + 1, end + 1)
        if frame.message is not None
    ]


def _divergences(recording: Recording) -> list[Divergence]:
    found = []
    for record in recording.archive.read(ROUTING) if ROUTING in recording.streams else ():
        if FOUND in record.payload:
            try:
                message = decode_message(record.payload)
            except Corrupt:
                continue
            found += [
                Divergence(
                    seq=record.seq,
                    replica=owner(record.subject),
                    other=event.other,
                    stream=event.stream,
                    at_seq=event.seq,
                    verdict=event.verdict,
                )
                for event in message.events
                if isinstance(event, DivergenceFound)
            ]
    return found

"""VersionComparison: another version's decisions, from a file that its `verify --write` wrote, beside this program's
own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from core.errors import CallerError, Corrupt
from core.ids import ReplicaId
from replay.parallel import Progress
from replay.playback.playback import Playback
from replay.recording.gaps import Gaps
from replay.recording.recording import Recording
from replay.verify.chain_proof import gaps_of
from replay.verify.judge import Verdict, verdicts
from replay.verify.verify import PROGRESS_EVERY

NO_RULES = "version"
"""The reason of a decision of which a program lacks the rules: it did not make that decision again."""


class OtherDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision as the other version made it."""

    request: str
    attempt: int
    seq: int
    recomputed: str
    worker: str
    cost: int
    recorded: str = ""
    recorded_worker: str = ""
    reason: str = ""
    """Of `replay.verify.evidence.REASONS`, if it was not judged."""


class VersionDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first decision that the two make otherwise."""

    request: str
    attempt: int
    replica: str
    replica_name: str
    seq: int
    same: int
    """Decisions before it that both make alike."""
    what: str
    """`choice`, `cost` or `digest`: the first of them that differs."""
    recorded_worker: str
    recorded_digest: str
    their_worker: str
    their_cost: int
    their_digest: str
    our_worker: str
    our_cost: int
    our_digest: str


class VersionComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the comparison."""

    compared: int
    """Decisions that both have made."""
    parting: VersionDifference | None


def compare_versions(
    recording: Recording,
    path: Path,
    start: int = 1,
    end: int | None = None,
    *,
    replicas: Collection[ReplicaId] | None = None,
    gaps: Gaps | None = None,
    progress: Progress = lambda _done, _of: None,
) -> VersionComparison:
    """Both in the order of the log, each decision by the rules that it records, up to the first difference; without
    decisions of which one program lacks the rules. CallerError if the file has none of these decisions."""
    theirs, compared = _OtherDecisions(path), 0
    total = len(recording.requests.span(start, end))
    gaps = gaps_of(recording) if gaps is None else gaps
    for number, ours in enumerate(verdicts(Playback(recording, start, end, replica=replicas, gaps=gaps))):
        if number % PROGRESS_EVERY == 0:
            progress(number, total)
        line = theirs.find(ours)
        if line is None or NO_RULES in {line.reason, ours.reason}:
            continue
        what = _difference(line, ours)
        if what:
            progress(total, total)
            return VersionComparison(compared=compared + 1, parting=_parting(recording, line, ours, compared, what))
        compared += 1
    progress(total, total)
    if not compared:
        raise CallerError(f"{path} has none of the decisions in this part of the record")
    return VersionComparison(compared=compared, parting=None)


class _OtherDecisions:
    """The file, read along with the decisions."""

    def __init__(self, path: Path) -> None:
        self._lines = _read(path)
        self._seq = 0
        self._here: dict[tuple[str, int], OtherDecision] = {}
        """Of the message at `_seq`."""
        self._next = next(self._lines, None)

    def find(self, it: Verdict) -> OtherDecision | None:
        """The line on the same decision; None if the file has none. Decisions come in the order of the log."""
        if it.seq != self._seq:
            self._seq, self._here = it.seq, {}
            while self._next is not None and self._next.seq <= it.seq:
                if self._next.seq == it.seq:
                    self._here[self._next.request, self._next.attempt] = self._next
                self._next = next(self._lines, None)
        return self._here.get((it.request, it.attempt))


def _read(path: Path) -> Iterator[OtherDecision]:
    decoder = msgspec.json.Decoder(OtherDecision)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    what = f"line {number} of {path} is none of `contrail replay verify --write`: {error}"
                    raise Corrupt(what) from error
    except OSError as error:
        raise CallerError(f"{path} cannot be read: {error.strerror}") from error


def _difference(line: OtherDecision, ours: Verdict) -> str:
    """Digests name the version of the rules: they tell something only if the other one's could have been equal."""
    if line.worker != ours.worker:
        return "choice"
    if line.cost != ours.cost:
        return "cost"
    they_follow, we_follow = line.recomputed == line.recorded, ours.recomputed == ours.recorded
    return "digest" if line.recomputed != ours.recomputed and (they_follow or we_follow) else ""


def _parting(recording: Recording, line: OtherDecision, ours: Verdict, same: int, what: str) -> VersionDifference:
    return VersionDifference(
        request=ours.request,
        attempt=ours.attempt,
        replica=ours.replica,
        replica_name=recording.names.replica(ours.replica),
        seq=ours.seq,
        same=same,
        what=what,
        recorded_worker=ours.recorded_worker,
        recorded_digest=ours.recorded,
        their_worker=line.worker,
        their_cost=line.cost,
        their_digest=line.recomputed,
        our_worker=ours.worker,
        our_cost=ours.cost,
        our_digest=ours.recomputed,
    )

"""The work of `verify`, done here or shared by several processes, one part of the replicas each.

What comes out does not depend on how it was shared: verdicts are merged in the order of the log.
"""

from __future__ import annotations

import gc
import heapq
import multiprocessing
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from core.errors import PeerError
from core.events import RequestRejected, RequestRouted
from core.ids import ReplicaId
from core.keys import DeploymentKey
from core.subjects import ROUTING, owner
from replay.fold_check import FoldCheck
from replay.lacks import Lacks
from replay.playback import Playback
from replay.recording import Recording
from replay.verdict import Verdict, place, verdicts
from streams.archive_envelope import envelope

CHUNK = 256
"""Verdicts that a process hands over at once."""
SHARE_MIN = 4000
"""Fewer decisions than this per process are not worth starting it."""

_ROUTED, _REFUSED = RequestRouted.__name__, RequestRejected.__name__


class Work(NamedTuple):
    """What is to be played."""

    recording: Recording
    start: int
    end: int | None
    owners: dict[ReplicaId, int]
    """Whose subjects have messages in the range, with how many decisions."""
    lacks: Lacks

    @property
    def total(self) -> int:
        """Decisions that were routed in the range."""
        return sum(self.owners.values())

    def playback(self, replicas: Collection[ReplicaId]) -> Playback:
        """Of these replicas alone."""
        return Playback(self.recording, self.start, self.end, replica=replicas, lacks=self.lacks)


def work_on(
    recording: Recording, start: int, end: int | None, only: Collection[ReplicaId] | None, lacks: Lacks
) -> Work:
    """Counts what there is to be done, by a reading of its own; some 3 us per message."""
    owners: Counter[ReplicaId] = Counter()
    for record in recording.archive.read(ROUTING, start, end) if ROUTING in recording.streams else ():
        said, whose = envelope(record.payload), ReplicaId(owner(record.subject))
        if said is not None and (only is None or whose in only):
            owners[whose] += sum(event.type == _ROUTED for event in said.events)
    return Work(recording, start, end, dict(owners), lacks)


class Playing:
    """Gives verdicts, and then what else was seen."""

    def __init__(self, work: Work, jobs: int) -> None:
        self.skipped: Counter[str] = Counter()
        """See `Playback.skipped`."""
        self.unreadable = 0
        """Messages in which there may be decisions that nobody can read."""
        self.folds = FoldCheck()
        self._work = work
        self._jobs = max(1, min(jobs, len(work.owners), work.total // SHARE_MIN))

    def __repr__(self) -> str:
        return f"<Playing {self._work.total} decisions in {self._jobs} processes>"

    def verdicts(self) -> Iterator[Verdict]:
        """All, in the order of the log."""
        return self._here() if self._jobs == 1 else self._shared()

    def _here(self) -> Iterator[Verdict]:
        playback = self._work.playback(self._work.owners.keys())
        yield from verdicts(playback)
        self._add(_Rest.of(playback))

    def _shared(self) -> Iterator[Verdict]:
        with ExitStack() as stack:
            parts = [stack.enter_context(_Part(self._work, share)) for share in shares(self._work.owners, self._jobs)]
            yield from heapq.merge(*(part.verdicts() for part in parts), key=place)
            for part in parts:
                self._add(part.rest)
            self.folds.differences.sort(key=lambda it: (it.reported_seq, it.stream, it.seq))

    def _add(self, rest: _Rest) -> None:
        self.skipped.update(rest.skipped)
        self.unreadable += rest.unreadable
        self.folds.add(rest.folds)


class _Rest(NamedTuple):
    """What a playback saw beside decisions."""

    skipped: Counter[str]
    unreadable: int
    folds: FoldCheck

    @staticmethod
    def of(playback: Playback) -> _Rest:
        """Once it has come to its end."""
        return _Rest(playback.skipped, playback.unreadable, playback.folds)


def shares(owners: dict[ReplicaId, int], jobs: int) -> list[list[ReplicaId]]:
    """The replicas in as many parts, about equal in decisions: each goes to whoever has fewest."""
    parts: list[tuple[int, int, list[ReplicaId]]] = [(0, number, []) for number in range(jobs)]
    for replica in sorted(owners, key=lambda replica: (-owners[replica], replica)):
        count, number, part = heapq.heappop(parts)
        heapq.heappush(parts, (count + owners[replica], number, [*part, replica]))
    return [part for _, _, part in sorted(parts, key=lambda part: part[1])]


class _Part:
    """One process and its share."""

    def __init__(self, work: Work, share: Sequence[ReplicaId]) -> None:
        self.rest = _Rest(Counter(), 0, FoldCheck())
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe(duplex=False)
        recording = work.recording
        task = partial(_play, recording.archive.path, recording.key, work.start, work.end, share, work.lacks)
        self._process = context.Process(target=task, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._process.kill()
        self._process.join()

    def verdicts(self) -> Iterator[Verdict]:
        """As they come. PeerError if the process ended before its end."""
        try:
            while isinstance(said := self._ours.recv(), bytes):
                yield from _decoder.decode(said)
        except EOFError as error:
            self._process.join()
            raise PeerError(f"a process that verifies ended with status {self._process.exitcode}") from error
        if isinstance(said, BaseException):
            raise said
        self.rest = said


def _play(
    path: Path,
    key: DeploymentKey | None,
    start: int,
    end: int | None,
    share: Sequence[ReplicaId],
    lacks: Lacks,
    parent: Connection,
) -> None:
    """What a process does."""
    try:
        with Recording.open(path, key) as recording, undisturbed():
            playback = Playback(recording, start, end, replica=set(share), lacks=lacks)
            coming = verdicts(playback)
            while chunk := list(islice(coming, CHUNK)):
                parent.send(_encode(chunk))
            parent.send(_Rest.of(playback))
    except BrokenPipeError:
        return  # nobody waits for it any more
    except Exception as error:  # noqa: BLE001 - it is raised again where somebody waits
        parent.send(error)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Nothing looks for cycles meanwhile: none are made, and looking through all that folds hold takes a sixth."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_encode = msgspec.msgpack.Encoder().encode  # a fifth of the price of pickling
_decoder = msgspec.msgpack.Decoder(list[Verdict])

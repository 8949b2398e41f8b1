"""VerifyPool: the shares of `verify`, played in this process or in several.

The result does not depend on the number of processes: verdicts come in the order of the log.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from core.errors import PeerError
from core.keys import DeploymentKey
from replay.playback.fold_reports import FoldCheck
from replay.playback.playback import Playback
from replay.recording.recording import Recording
from replay.verify.judge import Verdict, verdicts
from replay.verify.partition import LogShare, Partition

CHUNK = 256
"""Verdicts that a process hands over at once."""


class VerifyPool:
    """Gives verdicts, and then what else was seen."""

    def __init__(self, work: Partition, jobs: int) -> None:
        self.skipped: Counter[str] = Counter()
        """See `Playback.skipped`."""
        self.unreadable = 0
        """Messages in which there may be decisions that nobody can read."""
        self.folds = FoldCheck()
        self._recording = work.recording
        self._parts = work.parts(jobs)

    def __repr__(self) -> str:
        return f"<VerifyPool in {len(self._parts)} processes>"

    def verdicts(self) -> Iterator[Verdict]:
        """All, in the order of the log."""
        return self._here(self._parts[0]) if len(self._parts) == 1 else self._shared()

    def _here(self, part: LogShare) -> Iterator[Verdict]:
        playback = part.playback(self._recording)
        yield from verdicts(playback)
        self._add(_PlaybackCounts.of(playback))

    def _shared(self) -> Iterator[Verdict]:
        with ExitStack() as stack:
            waiting = [stack.enter_context(_ShareProcess(self._recording, part)) for part in self._parts]
            for process in waiting:
                while (chunk := process.next(waiting)) is not None:
                    yield from _decoder.decode(chunk)
                self._add(process.rest)

    def _add(self, rest: _PlaybackCounts) -> None:
        self.skipped.update(rest.skipped)
        self.unreadable += rest.unreadable
        self.folds.add(rest.folds)


class _PlaybackCounts(NamedTuple):
    """What a playback saw beside decisions."""

    skipped: Counter[str]
    unreadable: int
    folds: FoldCheck

    @staticmethod
    def of(playback: Playback) -> _PlaybackCounts:
        """Once it has come to its end."""
        return _PlaybackCounts(playback.skipped, playback.unreadable, playback.folds)


class _ShareProcess:
    """One process and its part."""

    def __init__(self, recording: Recording, part: LogShare) -> None:
        self.rest = _PlaybackCounts(Counter(), 0, FoldCheck())
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe(duplex=False)
        task = partial(_play, recording.archive.path, recording.key, part)
        self._process = context.Process(target=task, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._chunks: deque[bytes] = deque()
        self.over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self._process.kill()
        self._process.join()

    def next(self, all_of_them: list[_ShareProcess]) -> bytes | None:
        """Its next verdicts, None behind the last; what the others have meanwhile is taken from them, so that none
        waits. PeerError if one ended before its end."""
        while not self._chunks and not self.over:
            running = {each.connection: each for each in all_of_them if not each.over}
            for ready in wait(list(running)):
                running[ready].take()  # type: ignore[index]
        return self._chunks.popleft() if self._chunks else None

    def take(self) -> None:
        """One thing that it said, which is there."""
        try:
            said = self.connection.recv()
        except EOFError as error:
            self._process.join()
            raise PeerError(f"a process that verifies ended with status {self._process.exitcode}") from error
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, bytes):
            self._chunks.append(said)
        else:
            self.rest, self.over = said, True


def _play(path: Path, key: DeploymentKey | None, part: LogShare, parent: Connection) -> None:
    """What a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started it, who ends it
    try:
        with Recording.open(path, key) as recording, collector_paused():
            playback = part.playback(recording)
            coming = verdicts(playback)
            while chunk := list(islice(coming, CHUNK)):
                parent.send(_encode(chunk))
            parent.send(_PlaybackCounts.of(playback))
    except BrokenPipeError:
        return  # nobody waits for it any more
    except Exception as error:  # noqa: BLE001 - it is raised again where somebody waits
        parent.send(error)


@contextmanager
def collector_paused() -> Iterator[None]:
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

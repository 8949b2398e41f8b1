"""replay: decisions made again per second, with one replica and with several; a recording opened; a state at a moment.

The log is made by `bench.replay_log`, deterministically. CPU seconds are those of this process; with several processes
it is time that counts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.figures import MICRO, Figure, lap, main, median_s
from bench.replay_log import KEY, Scale, made
from core.ids import StreamName
from replay.parallel import collector_paused
from replay.playback.playback import Playback
from replay.recording.gaps import Gaps
from replay.recording.recording import Recording
from replay.verify.chain_proof import prove
from replay.verify.judge import VERIFIED, verdicts
from replay.verify.verify import verify

DECISIONS, DECISIONS_QUICK = 20_000, 3_000
LARGE = 100_000
REPEAT = 3
SHAPES = (
    ("1 replica", Scale(0, replicas=1)),
    ("4 replicas", Scale(0, replicas=4, lag_max=0)),
    ("4 replicas, each behind the others somewhere", Scale(0, replicas=4)),
)


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """All figures."""
    decisions = DECISIONS_QUICK if options.quick else DECISIONS
    with tempfile.TemporaryDirectory() as folder:
        for what, scale in SHAPES:
            path = made(Path(folder) / "log", scale._replace(decisions=decisions))
            yield from _verified(what, path)
        large = decisions if options.quick else LARGE
        path = made(Path(folder) / "large", Scale(large))
        yield from _opened(path, large)
        yield from _states(path)


def _verified(what: str, path: Path) -> Iterator[Figure]:
    spent_s = median_s(partial(_verify, path), REPEAT, time.process_time)
    with Recording.open(path, KEY) as recording:
        found = verify(recording, jobs=os.cpu_count() or 1)
        assert found.holds
        yield Figure(f"{what}: verify, CPU", MICRO * spent_s / found.decisions, "us/decision")
        yield Figure(f"{what}: verify, CPU", found.decisions / spent_s, "decisions/s", lower_is_better=False)
        jobs = f"{what}: verify, {os.cpu_count()} processes"
        yield Figure(jobs, found.decisions_per_s, "decisions/s", lower_is_better=False)
        proof_s = median_s(partial(prove, recording), REPEAT, time.process_time)
        yield Figure(f"{what}: proof of all chains", MICRO * proof_s / found.proof.messages, "us/message")


def _verify(path: Path) -> None:
    with Recording.open(path, KEY) as recording, collector_paused():
        assert all(verdict.verdict == VERIFIED for verdict in verdicts(Playback(recording, gaps=Gaps())))


def _opened(path: Path, decisions: int) -> Iterator[Figure]:
    def opened() -> None:
        with Recording.open(path, KEY) as recording:
            assert recording.names.workers

    what = f"{decisions:,} decisions"
    yield Figure(f"{what}: export opened", 1000 * median_s(lambda: Recording.open(path, KEY).close(), 5), "ms")
    yield Figure(f"{what}: opened, with its index and names", 1000 * median_s(opened, REPEAT), "ms")
    yield Figure(f"{what}: the file", path.stat().st_size / decisions, "bytes/decision")


def _states(path: Path) -> Iterator[Figure]:
    with Recording.open(path, KEY) as recording:
        messages = sum(recording.end.values())
        spent_s = lap(lambda: recording.state_at(recording.end), time.process_time)
        yield Figure("state at the end, folded from the start", spent_s, "s", note=f"{messages:,} messages")
        yield Figure("state at the end, folded from the start", MICRO * spent_s / messages, "us/message")
        half = {StreamName(stream): type(seq)(seq // 2) for stream, seq in recording.end.items()}
        yield Figure("state in the middle", lap(lambda: recording.state_at(half), time.process_time), "s")


if __name__ == "__main__":
    main("replay", measure)

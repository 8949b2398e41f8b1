"""`contrail replay verify`: every decision made again, and whether any differs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from api.cli.options import MOMENT_HELP, RecordingRange
from api.cli.output import EXIT_NO, EXIT_NOT_JUDGED, print_result, show_decision_progress
from api.cli.replay.recording_source import RecordingSource, positions, recording_options
from api.cli.replay.text.verify_text import verified_json, verified_text
from core.errors import CallerError
from replay.recording.moment import parse_moment
from replay.simulate.scale_judge import judge
from replay.verify.judge import Verdict
from replay.verify.verify import verify as verify_all

JOBS_MAX = 8


@click.command()
@recording_options
@click.option("--from", "start", help=MOMENT_HELP)
@click.option("--to", "end", help="MOMENT up to which, not included.")
@click.option("--replica", help="Only decisions of this replica, by name or id.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
@click.option(
    "--write",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a JSON line per decision, for `bisect --against`.",
)
@click.option("--strict", is_flag=True, help="Exit status 1 unless all is judged, and proved with the key.")
@click.option("--judge", "judges", is_flag=True, help="Simulate again behind each answer of a planner's judge.")
@click.option("--jobs", type=click.IntRange(1), help="Processes that share the work; as many as there are CPUs.")
def verify(
    source: RecordingSource,
    start: str | None,
    end: str | None,
    replica: str | None,
    write: Path | None,
    jobs: int | None,
    *,
    strict: bool,
    judges: bool,
    as_json: bool,
) -> None:
    """Make every recorded decision again, from the log alone: all must come out as they were, bit for bit.

    First the chains of all messages are checked; with the deployment's key that proves that the record says what was
    said. Then every decision is made again at the cursor that it was made at, by the version of the rules that made
    it. What a gap keeps from being judged is counted by reason, never as right.

    Exit status 0 if all of it is equal, or named as not judged with the reason; 1 if anything differs or is broken; 3
    if there are decisions and none could be judged. With --strict 1 unless all was judged, and proved with the key.

    \b
    contrail replay verify --data data
    contrail replay verify --log incident.contrail --key-file key
    contrail replay verify --from -1h --replica frontend-2 --json
    contrail replay verify --log incident.contrail --key-file key --strict
    contrail replay verify --log old.contrail --write before.jsonl
    contrail replay verify --data data --judge
    """
    now_ms = source.now_ms
    moments = [parse_moment(text, now_ms) if text is not None else None for text in (start, end)]
    with source.opened(RecordingRange(*moments)) as recording, _written(write) as on_verdict:
        first, last = positions(recording, *moments)
        replicas = None if replica is None else recording.names.replicas_called(replica)
        share = min(JOBS_MAX, jobs or os.cpu_count() or 1)
        found = verify_all(
            recording,
            first,
            last,
            replicas=replicas,
            jobs=share,
            progress=show_decision_progress(),
            on_verdict=on_verdict,
            judge=judge if judges else None,
        )
        value = verified_json(found, recording.names, strict=strict)
        print_result(verified_text(found, recording.names, strict=strict), value, as_json=as_json)
    if not found.sound or (strict and not found.complete):
        raise SystemExit(EXIT_NO)
    if found.none_judged:
        raise SystemExit(EXIT_NOT_JUDGED)


@contextmanager
def _written(path: Path | None) -> Iterator[Callable[[Verdict], Any]]:
    """A function that writes verdicts to the file, if there is one."""
    if path is None:
        yield lambda _: None
        return
    try:
        file = path.open("wb")
    except OSError as error:
        raise CallerError(f"{path} cannot be written: {error.strerror}") from error
    with file:
        encode = msgspec.json.Encoder().encode

        def write(it: Verdict) -> None:
            file.write(encode(line_of(it)) + b"\n")

        yield write


def line_of(it: Verdict) -> dict[str, Any]:
    """One decision as a line of JSON says it."""
    return {
        "request": it.request,
        "attempt": it.attempt,
        "replica": it.replica,
        "seq": it.seq,
        "recorded": it.recorded,
        "recomputed": it.recomputed,
        "recorded_worker": it.recorded_worker,
        "worker": it.worker,
        "cost": it.cost,
        "decide_version": it.decide_version,
        "verdict": it.verdict,
        "reason": it.reason,
    }

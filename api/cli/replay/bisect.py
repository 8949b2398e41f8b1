"""`contrail replay bisect`: the first event at which two recorded or remade histories differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from api.cli.options import MOMENT_HELP, RecordingRange, pairs_of
from api.cli.output import EXIT_NO, print_result, show_decision_progress
from api.cli.renderer import Text
from api.cli.replay.recording_source import RecordingSource, positions, recording_options
from api.cli.replay.text.bisect_text import against_text, cache_text, departure_text, replicas_text, settings_text
from core.errors import CallerError
from core.event_json import time_text
from core.ids import ReplicaId
from replay.bisect.cache_comparison import compare_cache
from replay.bisect.first_difference import find_first_difference
from replay.bisect.replica_comparison import compare_replicas
from replay.bisect.settings_comparison import compare_settings, settings_of_revisions, settings_with_changes
from replay.bisect.version_comparison import compare_versions
from replay.recording.gaps import Gaps
from replay.recording.moment import Moment, parse_moment
from replay.recording.recording import Recording
from replay.verify.chain_proof import prove


class BisectQuery(NamedTuple):
    """The range and the replicas to search."""

    recording: Recording
    moments: tuple[Moment | None, Moment | None]
    start: int
    end: int | None
    replicas: set[ReplicaId] | None

    def gaps(self) -> Gaps:
        """The gaps of the recording."""
        return prove(self.recording).gaps


class BisectResult(NamedTuple):
    """The result of a search."""

    what: str
    parts: bool
    found: Any
    text: Text


Bisection = Callable[[BisectQuery], BisectResult]


@click.command()
@recording_options
@click.option("--from", "start", help=MOMENT_HELP)
@click.option("--to", "end", help="MOMENT up to which, not included.")
@click.option("--replica", help="Only decisions of this replica, by name or id.")
@click.option("--replicas", nargs=2, metavar="A B", help="Two replicas, by name or id: where their folds part.")
@click.option("--settings", nargs=2, type=int, metavar="REV REV", help="Two revisions of the settings.")
@click.option("--set", "given", multiple=True, metavar="KEY=VALUE", help="What was in force against this change.")
@click.option(
    "--against", type=click.Path(path_type=Path), metavar="FILE", help="Another version: its `verify --write`."
)
@click.option("--worker", help="A worker, by name or id: its index against the cache that it restated.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with stable keys.")
def bisect(
    source: RecordingSource,
    start: str | None,
    end: str | None,
    replica: str | None,
    replicas: tuple[str, str] | None,
    settings: tuple[int, int] | None,
    given: tuple[str, ...],
    against: Path | None,
    worker: str | None,
    *,
    as_json: bool,
) -> None:
    """Find the first difference of two replicas, settings or versions, or of a worker's cache and its index.

    Without an option: the first decision that does not follow from the log, and the events just before it. Exit status
    1 if there is a difference.

    With --replicas and names: each start of a replica has its own id. The latest two are judged. Of earlier starts
    only their reports are compared, which counts for the exit status too; to judge those, name them by the printed ids.

    \b
    contrail replay bisect --log incident.contrail
    contrail replay bisect --replicas frontend-0 frontend-1 --from -1h
    contrail replay bisect --settings 12 15
    contrail replay bisect --set own_weight=2
    contrail replay bisect --against before.jsonl --log incident.contrail
    contrail replay bisect --worker decode-0
    """
    ask = _asked(replicas, settings, given, against, worker)
    now_ms = source.now_ms
    moments = tuple(parse_moment(text, now_ms) if text is not None else None for text in (start, end))
    with source.opened(RecordingRange(*moments)) as recording:
        first, last = positions(recording, *moments)
        only = None if replica is None else recording.names.replicas_called(replica)
        answer = ask(BisectQuery(recording, (moments[0], moments[1]), first, last, only))
    value = {"what": answer.what, "parts": answer.parts, "found": _timed(msgspec.to_builtins(answer.found))}
    print_result(answer.text, value, as_json=as_json)
    if answer.parts:
        raise SystemExit(EXIT_NO)


def _asked(
    replicas: tuple[str, str] | None,
    settings: tuple[int, int] | None,
    given: tuple[str, ...],
    against: Path | None,
    worker: str | None,
) -> Bisection:
    asks: list[Bisection] = []
    if replicas:
        asks.append(lambda it: _replicas(it, replicas))
    if settings:
        asks.append(lambda it: _settings(it, settings))
    if given:
        changes = _changes(given)
        asks.append(lambda it: _set(it, changes))
    if against:
        asks.append(lambda it: _against(it, against))
    if worker:
        asks.append(lambda it: _worker(it, worker))
    if len(asks) > 1:
        raise CallerError("give one of --replicas, --settings, --set, --against and --worker")
    return asks[0] if asks else _decisions


def _decisions(it: BisectQuery) -> BisectResult:
    found = find_first_difference(
        it.recording, it.start, it.end, replicas=it.replicas, gaps=it.gaps(), progress=show_decision_progress()
    )
    return BisectResult("decisions", found is not None, found, departure_text(found))


def _replicas(it: BisectQuery, replicas: tuple[str, str]) -> BisectResult:
    found = compare_replicas(
        it.recording, *replicas, it.start, it.end, gaps=it.gaps(), progress=show_decision_progress()
    )
    return BisectResult("replicas", found.part, found, replicas_text(found))


def _settings(it: BisectQuery, revisions: tuple[int, int]) -> BisectResult:
    choose = settings_of_revisions(it.recording, *revisions)
    found = compare_settings(
        it.recording, choose, it.start, it.end, replicas=it.replicas, progress=show_decision_progress()
    )
    text = settings_text(found, f"revision {revisions[0]}", f"revision {revisions[1]}")
    return BisectResult("settings", found is not None, found, text)


def _set(it: BisectQuery, changes: dict[str, Any]) -> BisectResult:
    found = compare_settings(
        it.recording,
        settings_with_changes(changes),
        it.start,
        it.end,
        replicas=it.replicas,
        progress=show_decision_progress(),
    )
    changed = ", ".join(f"{key}={value}" for key, value in changes.items())
    return BisectResult("settings", found is not None, found, settings_text(found, "what was in force", changed))


def _against(it: BisectQuery, path: Path) -> BisectResult:
    found = compare_versions(
        it.recording, path, it.start, it.end, replicas=it.replicas, gaps=it.gaps(), progress=show_decision_progress()
    )
    return BisectResult("against", found.parting is not None, found, against_text(found))


def _worker(it: BisectQuery, worker: str) -> BisectResult:
    recording = it.recording
    start, end = (
        None if moment is None else {stream: recording.position(stream, moment) for stream in recording.streams}
        for moment in it.moments
    )
    found = compare_cache(recording, worker, start, end)
    return BisectResult("worker", any(each.first is not None for each in found), found, cache_text(found))


def _changes(given: tuple[str, ...]) -> dict[str, Any]:
    words = list[str]()
    for text in given:
        key, equals, value = text.partition("=")
        if not (key.strip() and equals and value.strip()):
            raise CallerError(f"--set: {text!r} is not KEY=VALUE")
        words += [key.strip(), value.strip()]
    return pairs_of(tuple(words))


def _timed(value: Any) -> Any:
    """Times as text, too."""
    if isinstance(value, dict):
        timed = {key: _timed(each) for key, each in value.items()}
        if isinstance(value.get("time_ms"), int):
            timed["time"] = time_text(value["time_ms"])
        return timed
    return [_timed(each) for each in value] if isinstance(value, list) else value

"""Wrong records: small logs of which each lacks something else, with a decision for each term that its record states
wrongly. `verify` calls such a decision different, or not judged where the term may rest on what the log lacks.

The last decisions of a log are made after all sources have restated themselves, and behind a report of the replica.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from core.events import Event, LocalChanged, RequestRejected, RequestRouted
from core.events.kv import PREFILL
from core.events.routing import DECIDE_VERSION
from core.ids import Epoch, ReplicaId, RequestId, StreamName, WorkerId, from_column, to_column
from core.settings import APPROXIMATE, RoutingSettings
from core.subjects import LOAD, ROUTING
from projections.policy.decide import decide, rejection
from projections.policy.view import RouteRequest
from replay.recording.recording import Recording
from replay.verify.judge import Verdict, judge_decision
from replay.verify.verify import VerifyResult, verify
from streams.archive.archive_writer import ArchiveWriter
from tests.projections.facts import finished, joined, load, prompt, replica_restated, restated, stored, worker_id
from tests.replay.staged import ASKED, HASHES, KEY, KV, R, S, Stage

WORKERS = {"left": worker_id(1), "right": worker_id(2), "third": worker_id(3)}
LEFT, RIGHT, THIRD = WORKERS.values()
PREFILLING, FAILED, OTHER = worker_id(4), worker_id(5), worker_id(6)
"""A worker that prefills, one that the replica has a reason against, and one of another model."""
SETTINGS = {
    "kv": RoutingSettings(policy="kv"),
    "kv, one shown": RoutingSettings(policy="kv", candidates_recorded_max=1),
    "time": RoutingSettings(policy="time", prefill_base_us=900, prefill_us_per_token_m=90_000),
    APPROXIMATE: RoutingSettings(policy=APPROXIMATE),
    "round-robin": RoutingSettings(policy="round-robin"),
}
"""By the name under which decisions are made."""
EVERY_POLICY = frozenset({"nothing", "lost request", "deleted own message", "cut decisions"})
"""Logs with decisions under all of these; the others have the first two."""
MENDED = "mended"
JUDGED_ALONE = 17
"""Of so many decisions one is judged alone, too."""


class Lack(NamedTuple):
    """The messages of the stage that its log does not have, and events that follow on the decisions."""

    gone: frozenset[tuple[StreamName, int]] = frozenset()
    cut: Mapping[StreamName, int] = {}
    """The last message of each stream that retention took."""
    ends: Mapping[StreamName, int] = {}
    """The last message of streams of an export that is limited to a moment."""
    cursor: Mapping[str, tuple[int, int]] = {}
    """Places that all records name."""
    version: int = 0
    """Of the rules that all records name; 0 for the right one."""
    after: Callable[[Stage], object] = lambda _: None


def _lose(stage: Stage, stream: StreamName, source: str) -> None:
    """A message of the source never reaches the log."""
    n, _ = stage._chains[stream, source]
    stage._chains[stream, source] = n + 1, bytes(16)


def _ends(stage: Stage) -> dict[StreamName, int]:
    return {stream: len(frames) for stream, frames in stage.frames.items()}


def _lost(stream: StreamName, source: str, *, noticed: bool = False) -> Callable[[Stage], Lack]:
    events: dict[StreamName, Event] = {KV: stored(77), LOAD: load(2), ROUTING: finished("none")}

    def lack(stage: Stage) -> Lack:
        _lose(stage, stream, source)
        if noticed:
            stage.say(stream, source, events[stream])
            return Lack()
        return Lack(after=lambda stage: stage.say(stream, source, events[stream]))

    return lack


def _deleted_cache(stage: Stage) -> Lack:
    gone = stage.say(KV, RIGHT, stored(*HASHES[:4]))
    return Lack(frozenset({(KV, gone)}), after=lambda stage: stage.say(KV, RIGHT, stored(77)))


def _deleted_hidden(stage: Stage) -> Lack:
    return Lack(
        frozenset({(KV, stage.say(KV, OTHER, stored(77)))}), after=lambda stage: stage.say(KV, LEFT, stored(77))
    )


def _deleted_own(stage: Stage) -> Lack:
    return Lack(frozenset({(ROUTING, stage.tell(LocalChanged(worker=RIGHT, reasons=("stale",))))}))


def _cut(*streams: StreamName) -> Callable[[Stage], Lack]:
    return lambda stage: Lack(cut={stream: seq for stream, seq in _ends(stage).items() if stream in streams})


def _other_epoch(stream: StreamName, *, named: bool) -> Callable[[Stage], Lack]:
    def lack(stage: Stage) -> Lack:
        cursor: dict[str, tuple[int, int]] = {stream: (7, 3)}
        if named:
            event = stage.decided("witness", ASKED, replica=S)
            stage.tell(replace(event, cursor={**event.cursor, **cursor}), replica=S)
        return Lack(cursor=cursor)

    return lack


def _rolled_back(stage: Stage) -> Lack:
    """The log lost the newest messages of a stream behind a report on them, and others stand in their place."""
    first = stage.say(KV, RIGHT, stored(*HASHES[:4]))
    stage.tell(stage.report(R))

    def roll_back(stage: Stage) -> None:
        del stage.frames[KV][first - 1 :]
        stage._records = [it for it in stage._records if it.stream != KV or it.seq < first]

    return Lack(after=roll_back)


def _ended(stream: StreamName) -> Callable[[Stage], Lack]:
    def lack(stage: Stage) -> Lack:
        end = len(stage.frames[stream])
        stage.say(stream, RIGHT, stored(*HASHES[:4]) if stream == KV else load(2))
        return Lack(ends={stream: end})

    return lack


LACKS: dict[str, Callable[[Stage], Lack]] = {
    "nothing": lambda _: Lack(),
    "lost cache event": _lost(KV, RIGHT),
    "lost cache event, noticed": _lost(KV, RIGHT, noticed=True),
    "lost report": _lost(LOAD, RIGHT),
    "lost request": _lost(ROUTING, S),
    "lost request, noticed": _lost(ROUTING, S, noticed=True),
    "deleted cache event": _deleted_cache,
    "deleted event of another model": _deleted_hidden,
    "deleted own message": _deleted_own,
    "cut caches": _cut(KV),
    "cut reports": _cut(LOAD),
    "cut decisions": _cut(ROUTING),
    "other epoch of caches": _other_epoch(KV, named=True),
    "other epoch of reports": _other_epoch(LOAD, named=True),
    "epoch that nothing names": _other_epoch(LOAD, named=False),
    "store rolled back": _rolled_back,
    "limited caches": _ended(KV),
    "limited reports": _ended(LOAD),
    "newer rules": lambda _: Lack(version=DECIDE_VERSION + 1),
}
"""By the name of the log."""


def write_logs(folder: Path) -> None:
    """The folder has a log of each name in LACKS."""
    for name, lack in LACKS.items():
        policies = [*SETTINGS] if name in EVERY_POLICY else [*SETTINGS][:2]
        _WrongRecords(newer="9.9.9" if name == "newer rules" else "").write(lack, policies, folder / name)


class _WrongRecords:
    """One log."""

    def __init__(self, newer: str) -> None:
        self.stage = stage = Stage()
        self._joined = {worker: joined(name) for name, worker in WORKERS.items()} | {
            PREFILLING: replace(joined("prefill"), role=PREFILL),
            FAILED: joined("failed"),
            OTHER: joined("other", model="other"),
        }
        for number, (worker, event) in enumerate(self._joined.items()):
            stage.say(KV, worker, event, stored(*HASHES[: (2, 1, 0, 6, 0, 0)[number]]))
            stage.say(LOAD, worker, load())
        for replica, name in ((R, "r1"), (S, "r2")):
            stage.replica(replica, name, SETTINGS["kv"], **({"program": newer} if newer else {}))
        stage.tell(LocalChanged(worker=FAILED, reasons=("failed",)))
        for number in range(2):
            stage.route(f"busy-{number}", prompt(1, 2, 3, 4, 9 + number), replica=S)

    def write(self, lack: Callable[[Stage], Lack], policies: list[str], path: Path) -> None:
        """The log with its wrong records."""
        stage = self.stage
        found = lack(stage)
        for name in policies:
            stage.settings(SETTINGS[name])
            self._decide(name, found)
        self._refuse(found)
        self._report()
        found.after(stage)
        if found.ends:
            self._archive(path, found)
            return
        for worker, event in self._joined.items():
            stage.say(KV, worker, event, restated(0, 1, *HASHES[:2]))
            stage.say(LOAD, worker, load())
        for replica in (S, R):
            stage.tell(replica_restated([]), replica=replica)
        stage.settings(SETTINGS["kv"])
        stage.tell(stage.report(R))
        self._decide(MENDED, Lack())
        self._report()
        self._archive(path, found)

    def _decide(self, name: str, lack: Lack) -> None:
        stage = self.stage
        for term, change in _CHANGES:
            request = f"{name}: {term}"
            event = stage.decided(request, ASKED)
            if (wrong := change(event)) is None:
                continue
            wrong = replace(
                wrong,
                cursor={**wrong.cursor, **lack.cursor},
                decide_version=lack.version or wrong.decide_version,
            )
            stage.tell(wrong)
            stage.tell(finished(request))

    def _refuse(self, lack: Lack) -> None:
        stage, number = self.stage, 0
        seat = stage.seat(R)
        for model in ("absent", "tiny"):
            asked = RouteRequest(RequestId("refused"), 0, "absent", ASKED)
            decision = decide(seat.view, asked, seat.settings, stage.clock.now_ms, 0)
            for event in _refusals(replace(rejection(decision, asked, seat.revision, 503), model=model)):
                number += 1
                cursor = {**event.cursor, **lack.cursor}
                stage.tell(replace(event, request=f"refused {number}", cursor=cursor))

    def _report(self) -> None:
        """A report on another fold than the log's."""
        report = self.stage.report(R)
        points = {stream: replace(it, digests=bytes(len(it.digests))) for stream, it in report.points.items()}
        self.stage.tell(replace(report, points=points))

    def _archive(self, path: Path, lack: Lack) -> None:
        stage = self.stage
        writer = ArchiveWriter(path, "test", KEY.chain_key, "contrail test", 1)
        for stream, frames in stage.frames.items():
            first, last = lack.cut.get(stream, 0) + 1, lack.ends.get(stream, len(frames))
            writer.open(stream, Epoch(1), 1, first)
            for record in stage._records:
                if record.stream == stream and first <= record.seq <= last and (stream, record.seq) not in lack.gone:
                    writer.add(record)
            writer.reached(stream, last)
        writer.finish(writer.contents(0, stage.clock.now_ms if lack.ends else 0))


Change = Callable[[RequestRouted], RequestRouted | None]
"""Of a record to one with a wrong term; None if it has no such term."""


def _column(column: str, name: str) -> Change:
    def change(event: RequestRouted) -> RequestRouted | None:
        ids = from_column(event.candidates)
        if column not in event.columns or WORKERS[name] not in ids:
            return None
        values = [*event.columns[column]]
        at = ids.index(WorkerId(WORKERS[name]))
        values[at] = 1 - values[at] if column == "known" else values[at] + 1
        return replace(event, columns={**event.columns, column: tuple(values)})

    return change


def _order(*order: int, more: int = 0, choose: bool = False) -> Change:
    """The candidates in this order."""

    def change(event: RequestRouted) -> RequestRouted | None:
        ids = from_column(event.candidates)
        if max(order) >= len(ids):
            return None
        columns = {column: tuple(values[at] for at in order) for column, values in event.columns.items()}
        ours = [WorkerId(ids[at]) for at in order]
        return replace(
            event,
            candidates=to_column(ours),
            columns=columns,
            candidates_total=event.candidates_total + more,
            worker=ours[0] if choose else event.worker,
        )

    return change


def _field(name: str, change: Callable[[RequestRouted], object]) -> tuple[str, Change]:
    return name, lambda event: replace(event, **{name: change(event)})


_CHANGES: list[tuple[str, Change]] = [
    ("right", lambda event: event),
    *(
        (f"{column} of {name}", _column(column, name))
        for column in (
            "overlap", "overlap_all", "pending", "active_blocks", "active_requests", "prefill", "waiting", "known",
            "wait_us", "cost",
        )
        for name in WORKERS
    ),
    ("candidate left out", _order(0, 1, more=-1)),
    ("candidate not counted", _order(0, 1, 2, more=-1)),
    ("candidates exchanged", _order(0, 2, 1)),
    ("all exchanged", _order(2, 1, 0, choose=True)),
    ("two exchanged", _order(1, 0, 2, choose=True)),
    ("not excluded", lambda event: replace(event, excluded={})),
    ("excluded", lambda event: replace(event, excluded={**event.excluded, "draining": (1, to_column([RIGHT]))})),
    ("one more excluded", lambda event: replace(event, excluded={"failed": (2, to_column([FAILED, RIGHT]))})),
    _field("worker", lambda event: RIGHT if event.worker != RIGHT else LEFT),
    _field("predicted_cached_tokens", lambda event: event.predicted_cached_tokens + 4),
    _field("prefill_tokens", lambda event: event.prefill_tokens + 1),
    _field("blocks", lambda event: event.blocks + 1),
    _field("wait_us", lambda event: event.wait_us + 1),
    _field("policy", lambda _: "random"),
    _field("prefer", lambda _: THIRD),
    _field("prefer_tokens", lambda event: event.prefer_tokens + 1),
    _field("believed", lambda event: (7, 7)),
    _field("digest", lambda _: "0" * 16),
    _field("seed", lambda event: event.seed + 1),
    _field("settings_revision", lambda event: event.settings_revision + 1),
    _field("decide_version", lambda _: 0),
    _field("cursor", lambda event: {**event.cursor, LOAD: (1, event.cursor[LOAD][1] - 1)}),
    ("two wrong terms", lambda event: replace(event, policy="random", blocks=event.blocks + 1)),
]  # fmt: skip
"""Wrong terms, by name."""


def _refusals(event: RequestRejected) -> Iterator[RequestRejected]:
    yield event
    yield replace(event, excluded={})
    yield replace(event, excluded={**event.excluded, "draining": (1, to_column([RIGHT]))})
    yield replace(event, excluded={**event.excluded, "overloaded": (1, to_column([RIGHT]))}, reason="overloaded")
    yield replace(event, reason="overloaded")
    for status, attempt in ((500, 0), (500, 1), (503, 1), (200, 1)):
        yield replace(event, status=status, attempt=attempt)
    yield replace(event, settings_revision=event.settings_revision + 1)
    yield replace(event, decide_version=0)


class Finding(NamedTuple):
    """A finding of verify in one of the logs."""

    name: str
    """The decision."""
    verdict: str
    """The term, or why it is not judged."""
    digest: str
    """Of all that is said of it."""


def findings(path: Path) -> Iterator[Finding]:
    """Of one log, in its order; figures of the whole come last."""
    given: list[Verdict] = []
    with Recording.open(path, KEY) as recording:
        found = verify(recording, on_verdict=given.append)
        for number, it in enumerate(given):
            alone = ""
            if not number % JUDGED_ALONE and not it.refusal:
                judged = judge_decision(recording, it.seq, ReplicaId(it.replica), it.request, it.attempt)
                assert judged is not None
                alone = repr((judged.same, judged.excuse))
            yield Finding(it.request, verdict_of(it), _digest(repr(it) + alone))
        yield Finding("figures", "", _digest(_figures(found)))


def verdict_of(it: Verdict) -> str:
    """In words: the reason why it is not judged, or the first term that differs."""
    if it.difference is None:
        return f"{it.verdict}: {it.reason}" if it.reason else it.verdict
    return f"{it.difference.term} {it.difference.term_worker_name}".strip()


def _figures(found: VerifyResult) -> str:
    return repr((
        found.not_judged, found.not_judged_why, found.gaps, found.proof.breaks, found.proof.gaps.replaced, found.folds,
        found.refusals, found.counts, found.digest, found.holds, found.complete,
    ))  # fmt: skip


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

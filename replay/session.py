"""ReplaySession: a recording for notebooks and small programs; everything that `contrail explain` and `replay` answer.

    with ReplaySession.open("incident.contrail") as log:
        log.decisions(slowest=10)
        log.explain("req-0123456789abcdef").attempts[0].why
        log.verify().holds
        log.at("14:03", replica="frontend-2").workers
        log.what_if(policy="round-robin").ttft_new_ms

A moment is what the commands take (`2026-11-20T14:03:05Z`, `14:03`, `-15m` before the recording's end, `routing:1234`,
a request id), or a `replay.recording.moment.Moment`; None is open. `contrail export FILE` makes the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from core.keys import DeploymentKey
from core.subjects import ROUTING
from replay.bisect.cache_comparison import CacheComparison, compare_cache
from replay.bisect.first_difference import FirstDifference, find_first_difference
from replay.bisect.replica_comparison import ReplicaComparison, compare_replicas
from replay.bisect.settings_comparison import SettingsComparison, compare_settings, settings_with_changes
from replay.cache.cache_losses import cache_losses
from replay.cache.cache_report import BY_CAUSE, CacheReport
from replay.explain.explain import explain
from replay.explain.explanation import Explanation
from replay.explain.request_list import RequestListEntry, list_requests
from replay.recording.moment import Moment, parse_moment
from replay.recording.recording import Recording
from replay.state_at.state_at import summary_at
from replay.state_at.state_summary import StateSummary
from replay.verify.verify import VerifyResult, verify
from replay.whatif.outcome import Outcome, ranked
from replay.whatif.scenario import USUAL_SCENARIOS, Scenario, scenarios
from replay.whatif.whatif import Progress, what_if

When = Moment | str | None


def _quiet(_done: int, _of: int) -> None:
    pass


class ReplaySession:
    """All answers of replay about one recording. Used by one thread at a time."""

    def __init__(self, recording: Recording) -> None:
        """The recording is the session's from now on."""
        self.recording = recording

    def __repr__(self) -> str:
        return f"<ReplaySession on {self.recording!r}>"

    @staticmethod
    def open(path: Path | str, key_file: Path | str | None = None) -> ReplaySession:
        """On an export. With the deployment's key, chains are proved. CallerError or Corrupt if it cannot be used."""
        key = DeploymentKey.load(Path(key_file)) if key_file is not None else None
        return ReplaySession(Recording.open(Path(path), key))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The recording is closed."""
        self.recording.close()

    @property
    def workers(self) -> dict[str, str]:
        """Ids to names; each start has its own id."""
        return {str(worker): name for worker, name in self.recording.names.workers.items()}

    @property
    def replicas(self) -> dict[str, str]:
        """Ids to names; each start has its own id."""
        return {str(replica): name for replica, name in self.recording.names.replicas.items()}

    def decisions(
        self,
        start: When = None,
        end: When = None,
        *,
        worker: str | None = None,
        replica: str | None = None,
        outcome: str | None = None,
        slowest: int | None = None,
        mispredicted: int | None = None,
    ) -> list[RequestListEntry]:
        """Every attempt at a request from `start` up to `end` (not included) that fits what is given, in the order of
        the log; or the slowest, or the worst predicted, the worst first. Workers and replicas by name or id."""
        return list_requests(
            self.recording,
            worker=worker,
            replica=replica,
            outcome=outcome,
            start=self._moment(start),
            end=self._moment(end),
            slowest=slowest,
            mispredicted=mispredicted,
        ).requests

    def explain(self, request: str, tenant: str | None = None) -> Explanation:
        """The decisions on the request and its outcome. CallerError if the recording does not have it, or has requests
        of several tenants under this id and none is named."""
        return explain(self.recording, request, tenant)

    def verify(
        self,
        start: When = None,
        end: When = None,
        replica: str | None = None,
        *,
        jobs: int = 1,
        progress: Progress = _quiet,
    ) -> VerifyResult:
        """Every decision made again; `holds` is true if all came out as recorded."""
        replicas = self.recording.names.replicas_called(replica) if replica is not None else None
        return verify(self.recording, *self._range(start, end), replicas=replicas, jobs=jobs, progress=progress)

    def at(self, moment: When, replica: str | None = None) -> StateSummary:
        """The whole state at the moment; with a replica's name or id, its view. None is the recording's end."""
        known = self._moment(moment)
        return summary_at(self.recording, known if known is not None else self.recording.end, replica)

    def what_if(self, start: When = None, end: When = None, *, progress: Progress = _quiet, **given: Any) -> Outcome:
        """The outcome under these settings, and `without` and `delay_ms` (see Scenario)."""
        (outcome,) = self._what_if([Scenario.parse(given)], start, end, progress)
        return outcome

    def compare(
        self,
        tries: Sequence[Mapping[str, Any]] = (),
        start: When = None,
        end: When = None,
        *,
        sweep: Mapping[str, Sequence[Any]] | None = None,
        progress: Progress = _quiet,
        **given: Any,
    ) -> list[Outcome]:
        """The same for each of `tries` and every combination of `sweep`, all over `given`: the best first. Without
        either, the usual ones are tried."""
        asked = scenarios(given, tries or (() if sweep else USUAL_SCENARIOS), sweep or {})
        return ranked(self._what_if(asked, start, end, progress))

    def first_departure(
        self, start: When = None, end: When = None, *, progress: Progress = _quiet
    ) -> FirstDifference | None:
        """The first decision that does not follow from the log; None if all do, or cannot be judged."""
        return find_first_difference(self.recording, *self._range(start, end), progress=progress)

    def part(
        self, start: When = None, end: When = None, *, progress: Progress = _quiet, **changes: Any
    ) -> SettingsComparison | None:
        """The first decision that would have been another with these settings; None if none would."""
        return compare_settings(
            self.recording, settings_with_changes(changes), *self._range(start, end), progress=progress
        )

    def compare_replicas(self, first: str, second: str, start: When = None, end: When = None) -> ReplicaComparison:
        """The first difference of the folds of two replicas, by name or id; `part` is true if there is one."""
        return compare_replicas(self.recording, first, second, *self._range(start, end))

    def cache_losses(
        self, start: When = None, end: When = None, *, by: str = BY_CAUSE, progress: Progress = _quiet
    ) -> CacheReport:
        """Cache hits that were available, those that were achieved, and the difference by cause; a row for each
        `session`, `tenant`, `worker` or `hour` if `by` says so."""
        return cache_losses(self.recording, *self._range(start, end), by=by, progress=progress)

    def compare_cache(self, worker: str) -> list[CacheComparison]:
        """The first difference between a worker's cache by the log and by its restatement, for each of its starts."""
        return compare_cache(self.recording, worker)

    def _what_if(self, asked: Sequence[Scenario], start: When, end: When, progress: Progress) -> list[Outcome]:
        return what_if(self.recording, asked, *self._range(start, end), progress)

    def _moment(self, when: When) -> Moment | None:
        return parse_moment(when, self.recording.archive.contents.end_ms) if isinstance(when, str) else when

    def _range(self, start: When, end: When) -> tuple[int, int | None]:
        """Positions in the routing stream."""
        first, last = self._moment(start), self._moment(end)
        if ROUTING not in self.recording.streams:
            return 1, None
        return (
            1 if first is None else self.recording.position(ROUTING, first),
            None if last is None else self.recording.position(ROUTING, last),
        )

"""Recording source: how a command gets the recording that it works on: an export in a file, the log of a deployment, or
that of one that has ended, from the files of its private NATS.

Of a deployment the log, or a range of it, is copied into a temporary file first: then there is one way to replay, and
the deployment is asked once.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from api.cli.options import RecordingRange
from api.cli.replay.recording_copy import copy_archive, copy_log
from api.config.data_folder import DataFolder
from api.config.deployment_ref import OPTIONS, DeploymentRef, resolve_deployment
from api.config.run_file import read_run
from api.config.running_deployments import DEFAULT_DATA, data_folder_of
from api.deployment.managed_process import is_same, started_ticks
from api.process.planes import open_log
from core.clock import SystemClock
from core.errors import CallerError, ContrailError
from core.keys import DeploymentKey
from core.subjects import ROUTING
from replay.recording.moment import AtTime, FoundRequest, Moment, find_request
from replay.recording.recording import Recording
from streams.archive.archive_export import ExportedRange, Progress
from streams.archive.archive_format import Contents, is_key_of
from streams.archive.archive_log import ArchiveLog
from streams.archive.archive_reader import ArchiveReader
from streams.jetstream.store_log import StoreLog
from streams.log import EventLog

AFTER_MS = 900_000
"""Of a deployment's log so much is read behind a request, or behind the end of a range, for what came of it."""
BEFORE_MS = 60_000
"""And so much before it, for what was under way then."""


@dataclass(frozen=True, slots=True)
class StoppedDeployment:
    """A deployment that does not run, with a private NATS: its log lies in its data folder."""

    folder: DataFolder
    namespace: str
    key: DeploymentKey


@dataclass(frozen=True, slots=True)
class RecordingSource:
    """The source of a recording: a file, or a deployment, running or not."""

    file: Path | None
    key: DeploymentKey | None
    """The key given for a file; None if none was."""
    connection: DeploymentRef | None
    spare_keys: tuple[Path, ...] = ()
    """Files that may hold the key of `file`, if none was given."""
    stopped: StoppedDeployment | None = None

    @contextmanager
    def opened(self, range_: RecordingRange = RecordingRange()) -> Iterator[Recording]:  # noqa: B008 - immutable
        """The recording, which holds at least the range and all that it takes to fold it. CallerError, Corrupt or
        Unavailable if there is none."""
        if self.file is not None:
            with ArchiveReader.open(self.file) as archived:
                yield Recording(archived, self.key_of(archived.contents))
            return
        with tempfile.TemporaryDirectory(prefix="contrail-") as folder:
            path = Path(folder) / "log"
            asyncio.run(self._copied(path, range_))
            with Recording.open(path, self._deployment().key) as recording:
                yield recording

    @contextmanager
    def opened_at(self, request: str, tenant: str | None) -> Iterator[tuple[Recording, str, str | None]]:
        """The recording around the tenant's request, and the request's id and tenant; of a file all of it, and these as
        given. CallerError if a deployment's log knows no such request."""
        range_ = RecordingRange()
        if self.file is None:
            found = asyncio.run(self._found(request, tenant))
            request, tenant, at_ms = found.request, found.tenant, found.record.time_ms
            range_ = RecordingRange(AtTime(at_ms - BEFORE_MS), AtTime(at_ms + AFTER_MS))
        with self.opened(range_) as recording:
            yield recording, request, tenant

    async def _found(self, request: str, tenant: str | None) -> FoundRequest:
        async with self.log() as log:
            return await find_request(log, request, tenant)

    @asynccontextmanager
    async def log(self) -> AsyncIterator[EventLog]:
        """The log itself; only that of a deployment that runs can be followed."""
        if self.file is not None:
            with ArchiveReader.open(self.file) as archived:
                yield ArchiveLog(archived)
        elif self.stopped is not None:
            yield StoreLog(self.stopped.folder.nats, self.stopped.namespace)
        else:
            assert self.connection is not None
            async with open_log(self.connection) as log:
                yield log

    @property
    def now_ms(self) -> int:
        """The time that `-15m` goes back from: now, or the end of a log that does not grow."""
        if self.stopped is not None:
            return asyncio.run(self._end_ms())
        if self.file is None:
            return SystemClock().wall_ms()
        with ArchiveReader.open(self.file) as archived:
            return archived.contents.end_ms

    @property
    def words(self) -> tuple[str, ...]:
        """The options that name the same log to another command."""
        if self.file is not None:
            return "--log", str(self.file)
        if self.stopped is not None:
            return "--data", str(self.stopped.folder.path)
        assert self.connection is not None
        return self.connection.words

    async def _end_ms(self) -> int:
        """The time of the newest message."""
        async with self.log() as log:
            ends = [await log.at(stream, (await log.state(stream)).last_seq) for stream in await log.streams()]
        return max((record.time_ms for record in ends if record is not None), default=0)

    def _deployment(self) -> DeploymentRef | StoppedDeployment:
        found = self.connection or self.stopped
        assert found is not None
        return found

    async def _copied(self, path: Path, range_: RecordingRange, progress: Progress | None = None) -> ExportedRange:
        of = self._deployment()
        async with self.log() as log:
            return await copy_log(log, of.namespace, of.key, path, range_, progress)

    def key_of(self, contents: Contents) -> DeploymentKey | None:
        """The key that was given, or one that lies at hand and is the right one; nothing is said if none is."""
        if self.key is None and not contents.redacted:
            for path in self.spare_keys:
                key = _loaded(path)
                if key is not None and is_key_of(key.chain_key, contents.key_check):
                    return key
        return self.key

    def chain_key_of(self, contents: Contents) -> bytes:
        """The chain key of an archive from this source; empty if it is unknown."""
        if contents.redacted:
            return bytes.fromhex(contents.chain_key)
        key = self.key_of(contents) if self.file is not None else self._deployment().key
        return b"" if key is None else key.chain_key

    def copied(self, path: Path, range_: RecordingRange, progress: Progress) -> ExportedRange:
        """The range is copied into a new file. CallerError if it is empty."""
        if self.file is None:
            return asyncio.run(self._copied(path, range_, progress))
        with ArchiveReader.open(self.file) as archived:
            return asyncio.run(copy_archive(archived, self.key_of(archived.contents), path, range_, progress))


LOG_OPTION = click.option(
    "--log", "log_file", type=click.Path(path_type=Path), help="An export (`contrail export FILE`): needs no server."
)


def recording_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command has --log and the options of a connection, and gets a `RecordingSource` as its argument `source`."""

    @wraps(command)
    def with_source(*args: Any, log_file: Path | None, **given: Any) -> Any:
        names = ("data", "file", "nats", "etcd", "namespace", "key_file")
        where = {name: given.pop(name) for name in names}
        return command(*args, source=_source(log_file, where), **given)

    for option in (*reversed(OPTIONS), LOG_OPTION):
        with_source = option(with_source)
    return with_source


def _source(file: Path | None, where: dict[str, Any]) -> RecordingSource:
    if file is None:
        stopped = _stopped(where)
        return RecordingSource(None, None, None if stopped else resolve_deployment(**where), stopped=stopped)
    if any(where[name] for name in ("file", "nats", "etcd", "namespace")):
        raise CallerError("give either --log or the addresses of a deployment, not both")
    given, from_environment = where["key_file"], _is_from_environment("key_file")
    if given is not None and not from_environment:
        return RecordingSource(file, DeploymentKey.load(given), None)
    if where["data"] is not None:
        return RecordingSource(file, DeploymentKey.load(DataFolder(where["data"]).key), None)
    at_hand = DataFolder(Path(os.environ.get("CONTRAIL_DATA", DEFAULT_DATA))).key
    return RecordingSource(file, None, None, (given, at_hand) if given is not None else (at_hand,))


def _stopped(where: dict[str, Any]) -> StoppedDeployment | None:
    """The deployment of the data folder, if none of its processes runs and its log lies there."""
    if any(where[name] for name in ("file", "nats", "etcd", "namespace")) or "CONTRAIL_NATS" in os.environ:
        return None
    folder = DataFolder(data_folder_of(where["data"]).absolute())
    run = read_run(folder.run)
    if run is None or not (folder.nats / "jetstream").is_dir():
        return None
    supervised = run.started_ticks is not None and started_ticks(run.pid) == run.started_ticks
    if supervised or any(map(is_same, (*run.parts, *run.beside))):
        return None
    return StoppedDeployment(folder, run.namespace, DeploymentKey.load(folder.key))


def _is_from_environment(option: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(option) is ParameterSource.ENVIRONMENT


def _loaded(path: Path) -> DeploymentKey | None:
    """The key in the file; None if there is none that we can read."""
    try:
        return DeploymentKey.load(path)
    except (ContrailError, OSError):
        return None


def positions(recording: Recording, start: Moment | None, end: Moment | None) -> tuple[int, int | None]:
    """The sequences in the routing stream from which and up to which decisions count (None for no end). CallerError if
    the recording has no routing stream, or does not know a moment."""
    if ROUTING not in recording.streams:
        raise CallerError("this recording has no routing stream: no decision is in it")
    first = 1 if start is None else recording.position(ROUTING, start)
    return first, None if end is None else recording.position(ROUTING, end)

"""Recording source: how a command gets the recording that it works on: an export in a file, or the log of a deployment.

Of a running deployment the log, or a range of it, is copied into a temporary file first: then there is one way to
replay, and the deployment is asked once.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from api.cli.options import RecordingRange
from api.cli.replay.recording_copy import copy_archive, copy_log
from api.config.data_folder import DataFolder
from api.config.deployment_ref import DEFAULT_DATA, OPTIONS, DeploymentRef, resolve_deployment
from core.clock import SystemClock
from core.errors import CallerError, ContrailError
from core.keys import DeploymentKey
from core.subjects import ROUTING
from replay.recording.moment import Moment
from replay.recording.recording import Recording
from streams.archive.archive_export import ExportedRange, Progress
from streams.archive.archive_format import Contents, is_key_of
from streams.archive.archive_reader import ArchiveReader


@dataclass(frozen=True, slots=True)
class RecordingSource:
    """The source of a recording: a file, or a deployment."""

    file: Path | None
    key: DeploymentKey | None
    """The key given for a file; None if none was."""
    connection: DeploymentRef | None
    spare_keys: tuple[Path, ...] = ()
    """Files that may hold the key of `file`, if none was given."""

    @contextmanager
    def opened(self, range_: RecordingRange = RecordingRange()) -> Iterator[Recording]:  # noqa: B008 - immutable
        """The recording, which holds at least the range and all that it takes to fold it. CallerError, Corrupt or
        Unavailable if there is none."""
        if self.file is not None:
            with ArchiveReader.open(self.file) as archived:
                yield Recording(archived, self.key_of(archived.contents))
            return
        assert self.connection is not None
        with tempfile.TemporaryDirectory(prefix="contrail-") as folder:
            path = Path(folder) / "log"
            asyncio.run(copy_log(self.connection, path, range_))
            with Recording.open(path, self.connection.key) as recording:
                yield recording

    @property
    def now_ms(self) -> int:
        """The time that `-15m` goes back from: now, or the end of an export."""
        if self.file is None:
            return SystemClock().wall_ms()
        with ArchiveReader.open(self.file) as archived:
            return archived.contents.end_ms

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
        key = self.connection.key if self.connection is not None else self.key_of(contents)
        return b"" if key is None else key.chain_key

    def copied(self, path: Path, range_: RecordingRange, progress: Progress) -> ExportedRange:
        """The range is copied into a new file. CallerError if it is empty."""
        if self.connection is not None:
            return asyncio.run(copy_log(self.connection, path, range_, progress))
        assert self.file is not None
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
        return RecordingSource(None, None, resolve_deployment(**where))
    if any(where[name] for name in ("file", "nats", "etcd", "namespace")):
        raise CallerError("give either --log or the addresses of a deployment, not both")
    given, from_environment = where["key_file"], _is_from_environment("key_file")
    if given is not None and not from_environment:
        return RecordingSource(file, DeploymentKey.load(given), None)
    if where["data"] is not None:
        return RecordingSource(file, DeploymentKey.load(DataFolder(where["data"]).key), None)
    at_hand = DataFolder(Path(os.environ.get("CONTRAIL_DATA", DEFAULT_DATA))).key
    return RecordingSource(file, None, None, (given, at_hand) if given is not None else (at_hand,))


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

"""How a command gets the recording that it works on: an export in a file, or the log of a deployment that runs.

Of a running deployment the log, or the part that is wanted, is copied into a temporary file first: then there is one
way to replay, and the deployment is asked once.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import click

from api.connection import OPTIONS, Connection, resolve
from api.data_folder import DataFolder
from core.clock import SystemClock
from core.errors import CallerError
from core.ids import StreamName, StreamSeq
from core.keys import DeploymentKey
from core.moments import Moment
from core.subjects import SNAPSHOTS
from replay.history import position
from replay.recording import Recording
from streams.archive_writer import ArchiveWriter
from streams.archiving import Progress, Range, archive
from streams.jetstream import JetStreamLog
from streams.log import EventLog
from streams.snapshots import SnapshotStore

SAY_EVERY_S = 0.5


class Wanted(NamedTuple):
    """The part of the history that a command is about; None is open."""

    start: Moment | None = None
    end: Moment | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where the history comes from: a file, or a deployment."""

    file: Path | None
    key: DeploymentKey | None
    """For a file; None if nobody gave it."""
    connection: Connection | None

    @contextmanager
    def opened(self, wanted: Wanted = Wanted()) -> Iterator[Recording]:  # noqa: B008 - immutable
        """The recording, which holds at least what is wanted and all that it takes to fold it. CallerError, Corrupt or
        Unavailable if there is none."""
        if self.file is not None:
            with Recording.open(self.file, self.key) as recording:
                yield recording
            return
        assert self.connection is not None
        with tempfile.TemporaryDirectory(prefix="contrail-") as folder:
            path = Path(folder) / "log"
            asyncio.run(copy(self.connection, path, wanted))
            with Recording.open(path, self.connection.key) as recording:
                yield recording


LOG_OPTION = click.option(
    "--log", "log_file", type=click.Path(path_type=Path), help="An export (`contrail export FILE`): needs no server."
)


def recording_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command has --log and the options of a connection, and gets a `Source` as its argument `source`."""

    @wraps(command)
    def with_source(*args: Any, log_file: Path | None, **given: Any) -> Any:
        names = ("data", "file", "nats", "etcd", "namespace", "key_file")
        where = {name: given.pop(name) for name in names}
        return command(*args, source=_source(log_file, where), **given)

    for option in (*reversed(OPTIONS), LOG_OPTION):
        with_source = option(with_source)
    return with_source


async def copy(connection: Connection, path: Path, wanted: Wanted, progress: Progress | None = None) -> None:
    """The wanted part of the deployment's log stands in the file, with the snapshot before it."""
    log = await JetStreamLog.connect(
        connection.nats, connection.namespace, connection.topology, connection.nats_credentials
    )
    clock = SystemClock()
    program = f"contrail {version('contrail')}"
    writer = ArchiveWriter(path, connection.namespace, connection.key.chain_key, program, clock.wall_ms())
    try:
        store = SnapshotStore(log, connection.namespace, connection.key.chain_key)
        within = Range(await _positions(log, wanted.start), await _positions(log, wanted.end))
        await archive(log, store, writer, within, progress or told())
        from_ms = await _time_ms(log, within.start)
        writer.finish(writer.contents(from_ms, clock.wall_ms()))
    except BaseException:
        writer.abandon()
        raise
    finally:
        await log.close()


def told(what: str = "reading the log") -> Progress:
    """Says on a terminal's stderr, now and then, how far it is."""
    last_s = time.monotonic()

    def tell(done: int, of: int) -> None:
        nonlocal last_s
        if sys.stderr.isatty() and (time.monotonic() - last_s >= SAY_EVERY_S):
            last_s = time.monotonic()
            click.echo(f"\r{what}: {done:,} of {of:,} messages", err=True, nl=done == of)

    return tell


async def _positions(log: EventLog, moment: Moment | None) -> dict[StreamName, StreamSeq] | None:
    if moment is None:
        return None
    return {stream: await position(log, stream, moment) for stream in await log.streams() if stream != SNAPSHOTS}


async def _time_ms(log: EventLog, start: Mapping[StreamName, StreamSeq] | None) -> int:
    """When the earliest of these was stored; 0 for all that there is."""
    times = []
    for stream, seq in (start or {}).items():
        record = await log.at(stream, seq)
        if record is not None:
            times.append(record.time_ms)
    return min(times, default=0)


def _source(file: Path | None, where: dict[str, Any]) -> Source:
    if file is None:
        return Source(None, None, resolve(**where))
    if any(where[name] for name in ("file", "nats", "etcd", "namespace")):
        raise CallerError("give either --log or the addresses of a deployment, not both")
    key = where["key_file"] or (DataFolder(where["data"]).key if where["data"] else None)
    return Source(file, DeploymentKey.load(key) if key else None, None)

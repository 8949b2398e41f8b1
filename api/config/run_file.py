"""`run.json`, `metrics.json`, `parts/NAME.json`: addresses of a running deployment, Prometheus targets, announcements.

`contrail up` writes the first two; the other commands read the first, Prometheus the second (`file_sd_configs`).
Each process writes its own announcement to `parts/NAME.json` when it starts to listen.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from api.config.addresses import Address
from api.config.data_folder import PRIVATE_FILE, DataFolder, write_whole
from core.errors import CallerError

STARTING, READY, DRAINING, STOPPED = "starting", "ready", "draining", "stopped"
WAITING, DONE, FAILED, RUNNING = "waiting", "done", "failed", "running"


class ProcessEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the deployment."""

    name: str
    kind: str
    """`nats`, `etcd`, `frontend` or `worker`."""
    role: str | None = None
    """Of a worker: `decode` or `prefill`."""
    pid: int
    """The leader of its own process group."""
    started_ticks: int | None = None
    """When the process started, as the kernel counts: tells it from a later one with the same number."""
    id: str | None = None
    """WorkerId or ReplicaId."""
    ops: str | None = None
    """HOST:PORT of /live, /ready and /metrics."""
    address: str | None = None
    """HOST:PORT where requests are taken: a worker's TCP port, a server's client port."""
    restarts: int = 0
    log: str | None = None


class RestartStep(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a restart."""

    name: str
    state: str
    """`waiting`, `starting`, `draining`, `done` or `failed`."""
    took_s: float | None = None
    """From its turn to its end."""
    why: str | None = None
    """The error of a failed step."""


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """A restart of some parts: one after the other, and no further than the first that fails."""

    id: str
    state: str
    """`running`, `done` or `failed`."""
    parts: tuple[RestartStep, ...] = ()


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a deployment."""

    version: int = 1
    state: str
    """`starting`, `ready`, `draining` or `stopped`."""
    namespace: str
    data: str
    pid: int
    """Of `contrail up`."""
    started_ticks: int | None = None
    """When `contrail up` started, as the kernel counts: tells it from a later process with the same number."""
    started: str
    """When it was started, UTC."""
    api: str
    """The address for clients."""
    models: tuple[str, ...]
    nats: tuple[str, ...]
    etcd: tuple[str, ...]
    parts: tuple[ProcessEntry, ...] = ()
    beside: tuple[ProcessEntry, ...] = ()
    """Processes of a restart beside those: one that is to take over, or one that finishes what it has."""
    restart: Restart | None = None
    """The last one."""

    def write(self, path: Path) -> None:
        """The file says this."""
        write_whole(path, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def read_run(path: Path) -> RunFile | None:
    """The run file; None if there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunFile)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise CallerError(
            f"the data folder {path.parent} is another user's: run this command as the user of its `contrail up`"
        ) from error
    except msgspec.DecodeError as error:
        raise CallerError(f"{path} is not a run file ({error}): remove it, and start the deployment again") from error


class ScrapeTarget(msgspec.Struct, frozen=True):
    """One group of `file_sd_configs`: here one process."""

    targets: tuple[str, ...]
    """HOST:PORT."""
    labels: dict[str, str]
    """Labels that Prometheus adds to each series."""


def targets_of(run: RunFile) -> list[ScrapeTarget]:
    """Those that run and show metrics; those of a restart beside them, too, which serve as well."""
    return [_target(run, entry, entry.ops) for entry in (*run.parts, *run.beside) if entry.ops]


def write_targets(path: Path, run: RunFile, mode: int = PRIVATE_FILE) -> None:
    """The file lists the processes that show metrics; a reader sees all of the old or all of the new content."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(targets_of(run)), indent=2) + b"\n", mode)


def _target(run: RunFile, entry: ProcessEntry, ops: str) -> ScrapeTarget:
    labels = {"name": entry.name, "kind": entry.kind, "namespace": run.namespace}
    if entry.role:
        labels["role"] = entry.role
    return ScrapeTarget((ops,), labels)


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """Process id and addresses of a process that listens; it need not be ready yet."""

    pid: int
    ops: str
    """HOST:PORT of its operations listener."""
    id: str | None = None
    """WorkerId or ReplicaId."""
    address: str | None = None
    """HOST:PORT where it takes requests: a worker's TCP port, a front end's API."""


def announce(data: Path, name: str, announcement: Announcement) -> None:
    """The announcement stands in the data folder."""
    write_whole(DataFolder(data).part(name), msgspec.json.encode(announcement))


def announcement_of(data: DataFolder, name: str) -> Announcement | None:
    """The last announcement of the process; None if there is none, or its file cannot be read."""
    try:
        return msgspec.json.decode(data.part(name).read_bytes(), type=Announcement)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def announce_if_supervised(
    home: Path | None, name: str, ops: Address, *, id: str | None = None, address: str | None = None
) -> None:
    """The announcement stands in `home`, the data folder of the supervisor; None for a process started by hand."""
    if home is not None:
        announce(home, name, Announcement(pid=os.getpid(), ops=str(ops), id=id, address=address))

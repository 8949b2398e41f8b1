"""The announcement of a process: its addresses, in `parts/NAME.json` of the data folder from when it listens."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from api.config.data_folder import DataFolder, write_whole
from api.server.http_server import HttpServer


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """What a part says once it listens (it need not be ready yet)."""

    pid: int
    ops: str
    """HOST:PORT of its operations listener."""
    id: str | None = None
    """WorkerId or ReplicaId."""
    address: str | None = None
    """HOST:PORT where it takes requests: a worker's TCP port, a front end's API."""


def announce(data: Path, name: str, announcement: Announcement) -> None:
    """Whoever started the part can find it."""
    write_whole(DataFolder(data).part(name), msgspec.json.encode(announcement))


def announcement_of(data: DataFolder, name: str) -> Announcement | None:
    """What the part said last; None if it has not spoken, or its file cannot be read."""
    try:
        return msgspec.json.decode(data.part(name).read_bytes(), type=Announcement)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def announce_if_supervised(
    home: Path | None, name: str, ops: HttpServer, *, id: str | None = None, address: str | None = None
) -> None:
    """Who supervises the part can find it. `home` is the data folder of that `contrail up`, None by hand."""
    if home is not None:
        announce(home, name, Announcement(pid=os.getpid(), ops=str(ops.address), id=id, address=address))

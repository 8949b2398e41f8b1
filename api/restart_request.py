"""What `contrail restart` asks of a running `contrail up`: a file in the data folder, and a signal to look at it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from core.errors import CallerError

FRONTENDS, WORKERS = "frontends", "workers"
"""All of a kind; anything else is the name of a part."""


class RestartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which parts are to be restarted, one after the other."""

    id: str
    """By which who asked finds the restart in `run.json`."""
    parts: tuple[str, ...]


def ask_restart(path: Path, request: RestartRequest) -> None:
    """The request lies there. CallerError if one that nobody has taken yet does."""
    new = path.with_name(f".{path.name}.{request.id}")
    new.write_bytes(msgspec.json.encode(request))
    try:
        os.link(new, path)  # whole or not at all, and never over another
    except FileExistsError as error:
        raise CallerError("another restart waits for its turn already: try again when it is done") from error
    finally:
        new.unlink()


def take_request(path: Path) -> RestartRequest | None:
    """The request, which is taken away; None if there is none, or it says nothing."""
    try:
        content = path.read_bytes()
        path.unlink()
        return msgspec.json.decode(content, type=RestartRequest)
    except (FileNotFoundError, msgspec.DecodeError):
        return None

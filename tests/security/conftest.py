"""Attackers: a local user of this machine without any credential of the deployment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

STRANGER_UID = 65534
"""Owns nothing, and is in no group of ours."""
RUN_MAX_S = 60.0


class LocalUser:
    """Runs programs as another, unprivileged user of this machine."""

    def __init__(self, home: Path) -> None:
        self.home = home
        """A folder that this user may enter and write to."""
        self._interpreter = _interpreter()

    def start(self, program: str, *words: str) -> subprocess.Popen[str]:
        """The Python program, started; its output is in pipes."""
        return subprocess.Popen(
            [self._interpreter, "-I", "-c", program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home,
            user=STRANGER_UID,
            group=STRANGER_UID,
            extra_groups=[],
        )

    def run(self, program: str, *words: str) -> str:
        """The output of the Python program, which ended well."""
        process = self.start(program, *words)
        output, errors = process.communicate(timeout=RUN_MAX_S)
        assert process.returncode == 0, errors
        return output


@pytest.fixture(scope="session")
def local_user() -> Iterator[LocalUser]:
    """Another user; needs root, because only root can become one."""
    if os.geteuid() != 0:
        pytest.skip("only root can run a program as another user")
    home = Path(tempfile.mkdtemp(prefix="contrail-stranger-"))
    os.chown(home, STRANGER_UID, STRANGER_UID)
    try:
        yield LocalUser(home)
    finally:
        shutil.rmtree(home)


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that every user may enter."""
    path = Path(tempfile.mkdtemp(prefix="contrail-open-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def _interpreter() -> str:
    """A Python that the other user may start: the base interpreter, or the system's if that one lies in a home."""
    for path in (sys._base_executable, "/usr/bin/python3", "/usr/local/bin/python3"):  # type: ignore[attr-defined]
        try:
            subprocess.run([path, "-I", "-c", ""], user=STRANGER_UID, group=STRANGER_UID, extra_groups=[], check=True)
        except OSError:
            continue
        return str(path)
    pytest.skip("there is no Python that another user may start")

"""`contrail restart` signals a `contrail up` only while that runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from api.cli.restart import restart
from api.config.data_folder import DataFolder, FolderLock
from api.config.run_file import READY, RunFile
from core.errors import CallerError


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    folder = DataFolder(tmp_path)
    folder.make()
    return folder


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that now has the number of a `contrail up` that was killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process


def write_run(folder: DataFolder, pid: int) -> None:
    run = RunFile(
        state=READY,
        namespace="default",
        data=str(folder.path),
        pid=pid,
        started="2026-11-24T00:00:00Z",
        api="http://127.0.0.1:8000",
        models=("tiny",),
        nats=(),
        etcd=(),
    )
    run.write(folder.run)


@pytest.mark.parametrize("locked_before", [True, False])
def test_a_stale_run_file_has_no_process_signalled(
    folder: DataFolder, stranger: subprocess.Popen[bytes], locked_before: bool
) -> None:
    """`run.json` of a killed `contrail up` says `ready` for ever, and its number may be another process's by now."""
    write_run(folder, stranger.pid)
    if locked_before:
        with FolderLock(folder.lock):
            pass
    result = CliRunner().invoke(restart, ["--data", str(folder.path)])
    stranger.communicate(b"\n")
    assert stranger.returncode == 0, "it was signalled"
    assert isinstance(result.exception, CallerError)
    assert "no deployment runs with the data folder" in str(result.exception)
    assert not folder.restart.exists()

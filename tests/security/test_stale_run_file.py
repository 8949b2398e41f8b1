"""The run file of a killed `contrail up` names a process number that an innocent process has by now."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from api.cli.restart import restart
from api.config.data_folder import DataFolder, FolderLock
from api.deployment.managed_process import ManagedProcess, started_ticks
from api.deployment.process_specs import ProcessSpec
from core.errors import CallerError
from tests.fixtures.eventually import eventually


@pytest.fixture
def innocent() -> Iterator[subprocess.Popen[bytes]]:
    """A process that would die of SIGUSR1."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process


def test_a_restart_signals_only_the_process_that_wrote_the_run_file(
    tmp_path: Path, innocent: subprocess.Popen[bytes]
) -> None:
    """Also in the moment in which the next `contrail up` holds the lock and has not written its own file yet."""
    folder = DataFolder(tmp_path)
    folder.make()
    ticks = started_ticks(innocent.pid)
    assert ticks is not None
    run = {
        "state": "ready", "namespace": "default", "data": str(tmp_path), "pid": innocent.pid,
        "started_ticks": ticks - 1, "started": "", "api": "", "models": [], "nats": [], "etcd": [],
    }  # fmt: skip
    folder.run.write_text(json.dumps(run))
    with FolderLock(folder.lock):
        result = CliRunner().invoke(restart, ["--data", str(tmp_path)])
    innocent.communicate(b"\n")
    assert innocent.returncode != -signal.SIGUSR1
    assert innocent.returncode == 0
    assert isinstance(result.exception, CallerError)
    assert "no deployment runs with the data folder" in str(result.exception)


async def test_the_group_of_a_dead_part_keeps_its_number_until_it_is_killed(tmp_path: Path) -> None:
    """A reaped leader gives its number away, and `kill` would hit the process group of the next one with it."""
    folder = DataFolder(tmp_path)
    folder.make()
    spec = ProcessSpec(name="part", kind="test", what="", command=(sys.executable, "-c", "raise SystemExit(3)"))
    part = ManagedProcess(spec, folder, 5.0)
    await part.start()
    await eventually(lambda: not part.running, "its end")
    assert part.status == 3
    assert Path(f"/proc/{part.pid}").exists()
    await asyncio.gather(part.kill(), part.kill())
    assert not Path(f"/proc/{part.pid}").exists()
    assert part.status == 3

"""What `contrail up` writes down of a deployment while it runs."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import msgspec
import pytest

from api.cli.startup_progress import PlainProgress
from api.config.data_folder import DataFolder
from api.config.run_file import DRAINING, READY, STARTING, ProcessEntry, RunFile, read_run
from api.config.schema import Deployment
from api.deployment import launcher as launch_module
from api.deployment.launcher import Launcher
from tests.fixtures.eventually import eventually


@pytest.fixture
def said() -> StringIO:
    return StringIO()


@pytest.fixture
def launch(tmp_path: Path, said: StringIO) -> Iterator[Launcher]:
    """Of two workers; nothing of it is started."""
    data = DataFolder(tmp_path)
    data.make()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Launcher(Deployment(), data, [listener], PlainProgress(said))


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def written(launch: Launcher) -> str | None:
    said = read_run(launch._data.run)
    return said.state if said else None


@pytest.mark.parametrize(("holder", "name"), [(launch_module, "write_whole"), (RunFile, "write")])
async def test_a_disk_that_is_full_for_a_while(
    launch: Launcher, said: StringIO, monkeypatch: pytest.MonkeyPatch, holder: object, name: str
) -> None:
    """It is said once; as soon as there is room, the files say what is so."""
    launch._write_files()
    writer = asyncio.create_task(launch._keep_files())
    with monkeypatch.context() as patched:
        patched.setattr(launch_module, "RUN_FILE_S", 0.01)
        patched.setattr(holder, name, full)
        launch._state = READY
        await asyncio.sleep(0.4)
        assert written(launch) == STARTING
    await eventually(lambda: written(launch) == READY, "what changed meanwhile stands there")
    launch._state = DRAINING
    await eventually(lambda: written(launch) == DRAINING, "and what changes later")
    writer.cancel()
    await asyncio.wait((writer,))
    (line,) = said.getvalue().splitlines()
    assert line.startswith("run.json and deployment.json cannot be written in ")
    assert "No space left on device" in line


async def test_a_killed_run_is_not_ready_while_its_successor_starts(
    launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be another process's by now: `contrail restart` must not signal that. Its parts stay listed."""
    launch._state = READY
    launch._write_files()
    part = ProcessEntry(name="left", kind="worker", pid=1)
    before = msgspec.structs.replace(launch._run_file(Deployment()), parts=(part,))
    before.write(launch._data.run)
    seen: list[str | None] = []

    async def end_leftovers(_: object) -> list[str]:
        seen.append(written(launch))
        return []

    monkeypatch.setattr(launch_module, "end_leftovers", end_leftovers)
    await launch._end_leftovers()
    assert seen == [STARTING]
    now = read_run(launch._data.run)
    assert now is not None
    assert now.parts == (part,)


async def test_a_request_to_restart_that_cannot_be_read(
    launch: Launcher, said: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said, and the next one is heard."""
    asked: list[tuple[str, ...]] = []

    async def run(_: str, parts: tuple[str, ...]) -> None:
        asked.append(parts)

    monkeypatch.setattr(launch._rolling, "run", run)
    launch._data.restart.mkdir()
    told = asyncio.Event()
    restarting = asyncio.create_task(launch.restart_on_request(told))
    told.set()
    await eventually(lambda: not told.is_set(), "the first one was heard")
    await asyncio.sleep(0)
    launch._data.restart.rmdir()
    told.set()
    await eventually(lambda: asked == [("frontends",)], "the second one is done")
    restarting.cancel()
    await asyncio.wait((restarting,))
    assert "the restart failed inside: IsADirectoryError" in said.getvalue()

"""Commands find the deployment that runs, from any folder."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from api.config.data_folder import DataFolder, FolderLock
from api.config.running_deployments import data_folder_of, registered, running_folders, state_folder
from core.errors import CallerError


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The registry of a user without a deployment in the current folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("CONTRAIL_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state" / "contrail" / "deployments"


def made(path: Path) -> DataFolder:
    folder = DataFolder(path)
    folder.make()
    return folder


def test_the_folder_is_the_users_state() -> None:
    """A relative XDG_STATE_HOME does not count."""
    below = Path("contrail/deployments")
    assert state_folder({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == "/s" / below
    assert state_folder({"XDG_STATE_HOME": "s", "HOME": "/h"}) == "/h/.local/state" / below
    assert state_folder({"HOME": "/h"}) == "/h/.local/state" / below


def test_the_only_deployment_is_found_while_it_runs(state: Path, tmp_path: Path) -> None:
    """And nobody else may read where it is."""
    folder = made(tmp_path / "prod")
    with FolderLock(folder.lock), registered(state, folder.path) as fault:
        assert not fault
        assert data_folder_of(None) == folder.path
        (entry,) = state.iterdir()
        assert [stat.S_IMODE(each.stat().st_mode) for each in (state, entry)] == [0o700, 0o600]
        assert data_folder_of(Path("other")) == Path("other")
    assert not list(state.iterdir())
    assert data_folder_of(None) == Path("data")


def test_several_are_listed_with_what_to_type(state: Path, tmp_path: Path) -> None:
    one, two = made(tmp_path / "one"), made(tmp_path / "two")
    with (
        FolderLock(one.lock),
        FolderLock(two.lock),
        registered(state, one.path),
        registered(state, two.path),
        pytest.raises(CallerError) as refused,
    ):
        data_folder_of(None)
    assert str(refused.value) == f"2 deployments run here: say which one by --data {one.path}, --data {two.path}"


def test_a_deployment_that_was_killed_is_swept(state: Path, tmp_path: Path) -> None:
    """Its lock is free, or its folder is gone."""
    killed, running = made(tmp_path / "killed"), made(tmp_path / "running")
    with registered(state, killed.path), registered(state, tmp_path / "gone"), registered(state, running.path):
        with FolderLock(running.lock):
            assert running_folders(state) == [running.path]
        assert running_folders(state) == []
        assert not list(state.iterdir())


def test_the_folder_of_the_current_one_comes_first(state: Path, tmp_path: Path) -> None:
    """`data` where a deployment was started there, as before; CONTRAIL_DATA beats it."""
    folder, here = made(tmp_path / "prod"), made(tmp_path / "data")
    here.run.write_text("{}")
    with FolderLock(folder.lock), registered(state, folder.path):
        assert data_folder_of(None) == Path("data")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CONTRAIL_DATA", "named")
            assert data_folder_of(None) == Path("named")


def test_a_state_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The deployment runs without being registered."""
    (tmp_path / "file").write_text("")
    with registered(tmp_path / "file" / "state", tmp_path) as fault:
        assert (
            fault == f"{tmp_path}/file/state cannot be written (Not a directory): other commands need --data {tmp_path}"
        )

"""Announcements of processes: of two with one name, and of a file that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.config.data_folder import DataFolder, write_whole
from api.config.run_file import Announcement, announce, announcement_of

OLD, NEW = Announcement(pid=1, ops="127.0.0.1:1"), Announcement(pid=22, ops="127.0.0.1:22")


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    folder = DataFolder(tmp_path)
    folder.make()
    return folder


def test_two_processes_of_one_name_write_at_once(folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old front end and its successor each write a file of their own; the last one to put it in place counts."""
    replace = Path.replace

    def successor_first(new: Path, path: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        announce(folder.path, "frontend-0", NEW)
        assert announcement_of(folder, "frontend-0") == NEW
        return replace(new, path)

    monkeypatch.setattr(Path, "replace", successor_first)
    announce(folder.path, "frontend-0", OLD)
    assert announcement_of(folder, "frontend-0") == OLD
    assert [file.name for file in folder.part("frontend-0").parent.iterdir()] == ["frontend-0.json"]


def test_nothing_is_left_of_a_write_that_failed(folder: DataFolder) -> None:
    """A folder stands where the file should be."""
    path = folder.part("frontend-0")
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(path, b"{}")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b'{"pid": 1, "ops"', b"[]", b"\xff"])
def test_an_announcement_that_cannot_be_read_is_none(folder: DataFolder, content: bytes) -> None:
    """As of a process that does not listen yet: its supervisor goes on."""
    folder.part("frontend-0").write_bytes(content)
    assert announcement_of(folder, "frontend-0") is None

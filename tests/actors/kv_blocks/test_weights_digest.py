"""Weights are named by their content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actors.kv_blocks import weights_digest as module
from actors.kv_blocks.weights_digest import weights_digest
from core.errors import CallerError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"rope_theta": 1}')
    (folder / "a.safetensors").write_bytes(b"a" * 1000)
    (folder / "b.safetensors").write_bytes(b"b" * 1000)
    (folder / "README.md").write_text("text")
    return folder


def test_content_counts(model: Path, tmp_path: Path) -> None:
    """Not the folder, nor texts in it; a change of one byte does, with size and time as before."""
    kept = tmp_path / "kept.json"
    first = weights_digest(model, kept)
    (model / "README.md").write_text("other text")
    moved = model.rename(tmp_path / "moved")
    assert weights_digest(moved, kept) == first
    file = moved / "b.safetensors"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_bytes(b"c" + b"b" * 999)
    os.utime(file, ns=times)
    second = weights_digest(moved, kept)
    assert second != first
    (moved / "config.json").write_text('{"rope_theta": 2}')
    assert weights_digest(moved, kept) not in {first, second}


def test_a_file_is_read_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, read = tmp_path / "kept.json", list[str]()
    real = module._content

    def content(path: str) -> str:
        read.append(path)
        return real(path)

    monkeypatch.setattr(module, "_content", content)
    first = weights_digest(model, kept)
    assert len(read) == 3
    assert weights_digest(model, kept) == first
    assert len(read) == 3
    assert kept.stat().st_mode & 0o777 == 0o600
    (model / "a.safetensors").write_bytes(b"x")
    weights_digest(model, kept)
    assert len(read) == 4


@pytest.mark.parametrize("content", ["", "[1]", '{"a": 3}', '{"a": ["1", "no hex"]}', "\0"])
def test_a_damaged_file_of_digests_costs_time_alone(model: Path, tmp_path: Path, content: str) -> None:
    kept = tmp_path / "kept.json"
    first = weights_digest(model, kept)
    kept.write_text(content)
    assert weights_digest(model, kept) == first


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match=r"needs the model's weights as files, and .* has none"):
        weights_digest(tmp_path, tmp_path / "kept.json")
    (tmp_path / "a.safetensors").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CallerError, match="has none"):
        weights_digest(tmp_path, tmp_path / "kept.json")

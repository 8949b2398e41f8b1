"""Files in /dev/shm: only what no live process uses is removed, and only ours."""

from __future__ import annotations

import mmap
from pathlib import Path

from actors.engines.vllm.shared_memory import PREFIX, remove_leftovers


def test_only_leftovers_go(tmp_path: Path) -> None:
    names = ("mapped", "open", "left")
    mapped, opened, left = (tmp_path / f"{PREFIX}{name}.mmap" for name in names)
    other = tmp_path / "vllm_offload_1234.mmap"
    for path in (mapped, opened, left, other):
        path.write_bytes(bytes(4096))
    with mapped.open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 4096)
    with opened.open("rb"):
        assert remove_leftovers(tmp_path) == 1
    assert [path.exists() for path in (mapped, opened, left, other)] == [True, True, False, True]
    mapping.close()
    assert remove_leftovers(tmp_path) == 2
    assert remove_leftovers(tmp_path) == 0
    assert other.exists()
    assert remove_leftovers(tmp_path / "no such folder") == 0

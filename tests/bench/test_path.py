"""bench.path: the files that a cache event passes stay few."""

from __future__ import annotations

from pathlib import Path

from actors.engines.tiny_model import ensure_tiny_checkpoint
from bench.path import Followed, deployed, stored

FILES_MAX = 24
CHANGES_MAX = 55
"""Of file; they were 50 when this was written, and 77 before."""
TIMES_MAX = 20
"""On a busy machine, other work of the process falls into most of them; the path itself is in each."""


def few(path: Followed) -> bool:
    found = {figure.what: figure.value for figure in path.figures("it")}
    assert found["it: functions"]
    return found["it: files"] <= FILES_MAX and found["it: changes of file"] <= CHANGES_MAX


async def test_a_cache_event_passes_few_files(tmp_path: Path) -> None:
    """From the engine over the log to the index."""
    ensure_tiny_checkpoint(tmp_path / "model", lambda _: None)
    async with deployed(tmp_path / "model") as it:
        for number in range(TIMES_MAX):
            if few(await stored(it, number)):
                return
    raise AssertionError(f"none of {TIMES_MAX} events passed at most {FILES_MAX} files and {CHANGES_MAX} changes")

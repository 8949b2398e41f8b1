"""Files of engines' host tiers in /dev/shm: those that killed engines left behind are removed.

vLLM names such a file by its engine. `disk_tier` takes the name away as soon as all processes of the engine have mapped
the file; only an engine that is killed in its start leaves it. Others may share the machine: a file that is not ours by
name and user, or that a live process has mapped or open, is left alone.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from actors.engines.vllm.vllm_args import ENGINE_ID

FOLDER = Path("/dev/shm")  # noqa: S108 - vLLM's choice
PREFIX = f"vllm_offload_{ENGINE_ID}"


def remove_leftovers(folder: Path = FOLDER) -> int:
    """The number of files that were left behind and are gone now. Reads `/proc` only if there is a candidate."""
    removed = 0
    with suppress(OSError):  # a machine without that folder has none of its files
        found = [path for path in folder.glob(f"{PREFIX}*.mmap") if path.stat().st_uid == os.getuid()]
        used = _used() if found else set[str]()
        for path in found:
            if str(path) not in used:
                path.unlink(missing_ok=True)
                removed += 1
    return removed


def _used() -> set[str]:
    """All files of that kind that live processes have mapped or open."""
    used = set[str]()
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        with suppress(OSError):  # it ended, or is another user's, which cannot have a file of ours
            lines = (process / "maps").read_text(errors="replace").splitlines()
            used |= {line.split(maxsplit=5)[5] for line in lines if PREFIX in line}
        with suppress(OSError):
            for file in (process / "fd").iterdir():
                with suppress(OSError):
                    target = str(file.readlink())
                    if PREFIX in target:
                        used.add(target)
    return used

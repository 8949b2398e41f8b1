"""`metrics.json`: where each part of a running deployment shows its metrics, as Prometheus reads targets from files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from api.data_folder import write_whole
from api.run_file import PartEntry, RunFile


class Target(msgspec.Struct, frozen=True):
    """One group of `file_sd_configs`: here one process."""

    targets: tuple[str, ...]
    """HOST:PORT."""
    labels: dict[str, str]
    """What Prometheus writes to each of its series."""


def targets_of(run: RunFile) -> list[Target]:
    """Those that run and show metrics; those of a restart beside them, too, which serve as well."""
    return [_target(run, entry, entry.ops) for entry in (*run.parts, *run.beside) if entry.ops]


def write_targets(path: Path, run: RunFile) -> None:
    """The file says who shows metrics now; a reader sees all of the old or all of the new."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(targets_of(run)), indent=2) + b"\n")


def _target(run: RunFile, entry: PartEntry, ops: str) -> Target:
    labels = {"name": entry.name, "kind": entry.kind, "namespace": run.namespace}
    if entry.role:
        labels["role"] = entry.role
    return Target((ops,), labels)

"""Where `contrail up` says who can be scraped."""

from __future__ import annotations

import json
import socket
from io import StringIO
from pathlib import Path

import pytest

from api.cli.startup_progress import PlainProgress
from api.config.data_folder import DataFolder
from api.config.run_file import READY, ProcessEntry, RunFile, write_targets
from api.config.schema import Deployment
from api.deployment.launcher import Launcher
from api.deployment.preflight import check_metrics_file
from core.errors import CallerError


def entry(name: str, kind: str, ops: str | None = None, role: str | None = None) -> ProcessEntry:
    return ProcessEntry(name=name, kind=kind, pid=1, ops=ops, role=role)


def run(*parts: ProcessEntry, beside: tuple[ProcessEntry, ...] = ()) -> RunFile:
    return RunFile(
        state=READY, namespace="prod", data="", pid=1, started="", api="", models=(), nats=(), etcd=(), parts=parts,
        beside=beside,
    )  # fmt: skip


def test_each_part_with_metrics_is_a_target(tmp_path: Path) -> None:
    """In Prometheus' own form; a server that is not ours, and a part that does not listen yet, are none."""
    frontend = entry("frontend-0", "frontend", "127.0.0.1:9")
    comes = entry("frontend-0", "frontend", "127.0.0.1:11")
    path = tmp_path / "metrics.json"

    write_targets(
        path,
        run(entry("nats", "nats"), entry("decode-0", "worker", "127.0.0.1:10", "decode"), frontend, beside=(comes,)),
    )

    common = {"name": "frontend-0", "kind": "frontend", "namespace": "prod"}
    assert json.loads(path.read_text()) == [
        {
            "targets": ["127.0.0.1:10"],
            "labels": {"name": "decode-0", "kind": "worker", "namespace": "prod", "role": "decode"},
        },
        {"targets": ["127.0.0.1:9"], "labels": common},
        {"targets": ["127.0.0.1:11"], "labels": common},
    ]


def test_up_keeps_it_beside_run_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes as parts come and go, and is empty when none is there."""
    data = DataFolder(tmp_path)
    data.make()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        launch = Launcher(Deployment(), data, [listener], PlainProgress(StringIO()))
        launch._write_files()
        assert json.loads(data.metrics.read_text()) == []
        monkeypatch.setattr(launch, "_run_file", lambda _: run(entry("frontend-0", "frontend", "127.0.0.1:9")))
        launch._update_files()
    assert [group["targets"] for group in json.loads(data.metrics.read_text())] == [["127.0.0.1:9"]]


def test_a_file_elsewhere_needs_a_folder_that_can_be_written(tmp_path: Path) -> None:
    check_metrics_file(Deployment())
    check_metrics_file(Deployment(metrics_file=str(tmp_path / "metrics.json")))
    with pytest.raises(CallerError, match=f"metrics_file: {tmp_path / 'missing'} is no folder that this user may"):
        check_metrics_file(Deployment(metrics_file=str(tmp_path / "missing" / "metrics.json")))

"""How long parts take to leave: in the deployment file, as options of commands, and as what the supervisor allows."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from actors.draining import DRAIN_TIMEOUT_S
from actors.worker import WorkerOptions
from api import cli_worker
from api.cli import contrail
from api.config import Deployment
from api.config_load import load
from api.data_folder import DataFolder
from api.model_source import ModelSource
from api.parts import frontend_specs, worker_specs
from api.running.launch import FRONTEND_DRAIN_MAX_S, WORKER_LEAVE_MAX_S, Launch, frontend_drain_max_s
from api.running.progress import PlainProgress
from core.errors import CallerError

PREFILL = {"role": "prefill", "count": 1}


def deployment(folder: Path, group: dict[str, Any], **frontend: str) -> Deployment:
    file = folder / "deployment.yaml"
    workers = [group, PREFILL]
    file.write_text(yaml.safe_dump({"version": 1, "frontend": frontend, "workers": workers}))
    return load(file, environment={}).deployment


@pytest.mark.parametrize(
    ("given", "word"), [({}, "30"), ({"drain_timeout": "2m"}, "120"), ({"drain_timeout": "0s"}, "0")]
)
def test_workers_are_told_and_get_that_time(tmp_path: Path, given: dict[str, Any], word: str) -> None:
    """Those that prefill, too; the supervisor kills none before."""
    data = DataFolder(tmp_path / "data")
    wanted = deployment(tmp_path, {"count": 1, **given})
    sources = [ModelSource("tiny", "/models/tiny")] * 2
    for group, expected in zip(wanted.workers, (word, "30"), strict=True):
        for spec in worker_specs(group, sources[0], data):
            assert spec.command[spec.command.index("--drain-timeout") + 1] == expected
    with socket.create_server(("127.0.0.1", 0)) as listener:
        launch = Launch(wanted, data, [listener], PlainProgress(sys.stdout))
        launch._plan(sources)
    assert [part.drain_max_s for part in launch._workers] == [int(word) + WORKER_LEAVE_MAX_S, 30 + WORKER_LEAVE_MAX_S]


def test_front_ends_are_told_and_get_that_time(tmp_path: Path) -> None:
    """Not told, they stop at once."""
    data = DataFolder(tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (plain,) = frontend_specs(deployment(tmp_path, {}), data, [listener])
        slow = deployment(tmp_path, {}, stop_delay="7s")
        (told,) = frontend_specs(slow, data, [listener])
    assert "--stop-delay" not in plain.command
    assert told.command[told.command.index("--stop-delay") + 1] == "7"
    assert frontend_drain_max_s(slow) == FRONTEND_DRAIN_MAX_S + 7


def test_what_is_no_delay_is_named(tmp_path: Path) -> None:
    """Each key has a bound of its own."""
    for group, frontend, said in (
        ({"drain_timeout": "soon"}, {}, "drain_timeout: 'soon' is not a duration"),
        ({"drain_timeout": "2h"}, {}, "drain_timeout: 2h is too long; 3600s is the most"),
        ({}, {"stop_delay": "6m"}, "stop_delay: 6m is too long; 300s is the most"),
    ):
        with pytest.raises(CallerError, match=said):
            deployment(tmp_path, group, **frontend)


def test_the_commands_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of workers; a time without bound is refused."""
    (tmp_path / "key").write_text("ab" * 32)
    found: list[float] = []

    async def serve(_: object, options: WorkerOptions, __: object) -> str:
        found.append(options.drain_timeout_s)
        return "told to end"

    monkeypatch.setattr(cli_worker, "serve", serve)
    given = ["--model", "tiny", "--nats", "nats://x", "--etcd", "x:1", "--key-file", str(tmp_path / "key")]
    for command, more in (
        ("worker", []),
        ("worker", ["--drain-timeout", "2.5"]),
        ("prefill-worker", ["--drain-timeout", "0"]),
    ):
        result = CliRunner().invoke(contrail, [command, *given, *more])
        assert result.exit_code == 0, result.output
    assert found == [DRAIN_TIMEOUT_S, 2.5, 0.0]
    assert CliRunner().invoke(contrail, ["worker", *given, "--drain-timeout", "inf"]).exit_code == 2

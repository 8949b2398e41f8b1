"""How long parts take to leave: in the deployment file, as options of commands, and as what the supervisor allows."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from actors.worker.graceful_drain import DRAIN_TIMEOUT_S
from actors.worker.worker import WorkerOptions
from api.cli import frontend_command, worker_commands
from api.cli.main import contrail
from api.cli.startup_progress import PlainProgress
from api.config.data_folder import DataFolder
from api.config.loading import load
from api.config.schema import Deployment, FrontendSection
from api.deployment.launcher import FRONTEND_LEAVE_MAX_S, WORKER_LEAVE_MAX_S, Launcher, frontend_drain_max_s
from api.deployment.preflight import ModelSource
from api.deployment.process_specs import GpuAssignment, worker_specs
from api.process.frontend import FrontendArguments
from api.server.sockets import close_all
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
        for spec in worker_specs(group, sources[0], data, GpuAssignment(())):
            assert spec.command[spec.command.index("--drain-timeout") + 1] == expected
    with socket.create_server(("127.0.0.1", 0)) as listener:
        launch = Launcher(wanted, data, [listener], PlainProgress(sys.stdout))
        launch._plan(sources)
    close_all(launch._reserved)
    assert [part.drain_max_s for part in launch._workers] == [int(word) + WORKER_LEAVE_MAX_S, 30 + WORKER_LEAVE_MAX_S]


@pytest.mark.parametrize(("given", "words"), [({}, []), ({"engine_stall": "10m"}, ["--engine-stall", "600"])])
def test_workers_are_told_how_long_a_step_may_take(tmp_path: Path, given: dict[str, str], words: list[str]) -> None:
    """If the file says so; else their engine tells."""
    group = deployment(tmp_path, {"count": 1, **given}).workers[0]
    source, data = ModelSource("tiny", "/models/tiny"), DataFolder(tmp_path / "data")
    (spec,) = worker_specs(group, source, data, GpuAssignment(()))
    at = spec.command.index("--engine-stall") if "--engine-stall" in spec.command else len(spec.command)
    assert list(spec.command[at : at + 2]) == words


def test_front_ends_get_that_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They know it from the file, also where they are started alone; what the command line says comes first."""
    (tmp_path / "key").write_text("ab" * 32)
    slow = {"stop_delay": "7s", "drain_timeout": "3m", "listen": "127.0.0.1:8100", "advertise": "10.0.0.1"}
    found: list[FrontendSection] = []

    async def serve(_: object, arguments: FrontendArguments, _page: object) -> None:
        found.append(arguments.section)

    monkeypatch.setattr(frontend_command, "serve_frontend", serve)
    wanted = deployment(tmp_path, {}, **slow)
    given = ["frontend", "-f", str(tmp_path / "deployment.yaml"), "--key-file", str(tmp_path / "key")]
    addresses = ["--nats", "nats://x", "--etcd", "x:1"]
    for more in ([], ["--stop-delay", "0", "--drain-timeout", "5", "--listen", "127.0.0.1:1", "--advertise", "me"]):
        result = CliRunner().invoke(contrail, [*given, *addresses, *more])
        assert result.exit_code == 0, result.output

    as_told, otherwise = found
    assert as_told == wanted.frontend
    assert (otherwise.stop_delay_s, otherwise.drain_timeout_s) == (0, 5)
    assert (otherwise.listen, otherwise.advertise) == ("127.0.0.1:1", "me")
    assert frontend_drain_max_s(wanted) == 7 + 180 + FRONTEND_LEAVE_MAX_S
    assert frontend_drain_max_s(deployment(tmp_path, {})) == 30 + FRONTEND_LEAVE_MAX_S
    refused = CliRunner().invoke(contrail, [*given, *addresses, "--listen", "here"])
    assert isinstance(refused.exception, CallerError)
    assert "--listen: 'here'" in str(refused.exception)


def test_what_is_no_delay_is_named(tmp_path: Path) -> None:
    """Each key has a bound of its own."""
    for group, frontend, said in (
        ({"drain_timeout": "soon"}, {}, "drain_timeout: 'soon' is not a duration"),
        ({"drain_timeout": "2h"}, {}, "drain_timeout: 2h is too long; 3600s is the most"),
        ({"engine_stall": "2h"}, {}, "engine_stall: 2h is too long; 3600s is the most"),
        ({"engine_stall": "0s"}, {}, "engine_stall: at least 1s"),
        ({}, {"stop_delay": "6m"}, "stop_delay: 6m is too long; 300s is the most"),
        ({}, {"drain_timeout": "2h"}, "drain_timeout: 2h is too long; 3600s is the most"),
    ):
        with pytest.raises(CallerError, match=said):
            deployment(tmp_path, group, **frontend)


def test_the_commands_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of workers; a time without bound is refused."""
    (tmp_path / "key").write_text("ab" * 32)
    found: list[float] = []

    async def serve(_: object, options: WorkerOptions, *__: object) -> str:
        found.append(options.drain_timeout_s)
        return "told to end"

    monkeypatch.setattr(worker_commands, "serve_worker", serve)
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

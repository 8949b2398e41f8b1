"""Parsers and chat template of a worker group: from the file to the worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from actors.engines.vllm.vllm_engine import VllmEngine
from actors.worker.model_files import ChatFormat
from actors.worker.worker import WorkerOptions
from api.cli import worker_commands
from api.cli.main import contrail
from api.config.data_folder import DataFolder
from api.config.loading import load
from api.config.schema import MANNER, WorkerGroup
from api.deployment.preflight import ModelSource, check_model
from api.deployment.process_specs import GpuAssignment, worker_specs
from api.process.engine_factory import EngineArguments, make_engine
from core.errors import CallerError

GIVEN = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3", "chat_template": "chat.jinja"}


def group_of(folder: Path, **given: Any) -> WorkerGroup:
    """The only group of a deployment file."""
    file = folder / "contrail.yaml"
    file.write_text(yaml.safe_dump({"version": 1, "workers": [{"engine": "simulated", "count": 1, **given}]}))
    return load(file, environment={}).deployment.workers[0]


def words(folder: Path, **given: Any) -> tuple[str, ...]:
    """What the group's worker is started with."""
    (spec,) = worker_specs(
        group_of(folder, **given), ModelSource("tiny", "/models/tiny"), DataFolder(folder), GpuAssignment(())
    )
    return spec.command


def test_from_the_file_to_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are given; the template by its whole path."""
    monkeypatch.chdir(tmp_path)
    command = words(tmp_path, **GIVEN)
    at = command.index("--tool-call-parser")
    template = str(tmp_path / "chat.jinja")
    assert command[at : at + 6] == (
        "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--chat-template", template,
    )  # fmt: skip
    assert not [word for word in words(tmp_path) if "parser" in word or "template" in word]


def test_prefill_groups_have_none(tmp_path: Path) -> None:
    """They answer no requests."""
    for key in MANNER:
        with pytest.raises(CallerError, match=f"{key}: prefill groups answer no requests"):
            group_of(tmp_path, role="prefill", **{key: "x"})


def test_a_template_must_be_there(tmp_path: Path) -> None:
    """Before anything is started."""
    group = group_of(tmp_path, chat_template=str(tmp_path / "chat.jinja"))
    with pytest.raises(CallerError, match=r"'decode': there is no chat template at .*chat\.jinja"):
        check_model(group)
    (tmp_path / "chat.jinja").write_text("")
    check_model(group)


def test_from_the_command_to_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker hands all of it on; the engine is told how the model reasons."""
    (tmp_path / "key").write_text("ab" * 32)
    found: list[tuple[WorkerOptions, EngineArguments]] = []

    async def serve(_: object, options: WorkerOptions, arguments: EngineArguments, *__: object) -> str:
        found.append((options, arguments))
        return "told to end"

    monkeypatch.setattr(worker_commands, "serve_worker", serve)
    given = ["worker", "--model", "tiny", "--nats", "nats://x", "--etcd", "x:1", "--key-file", str(tmp_path / "key")]
    for more in ([], ["--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--chat-template", "c"]):
        result = CliRunner().invoke(contrail, [*given, *more])
        assert result.exit_code == 0, result.output
    (plain, _), (options, arguments) = found
    assert plain.manner == ChatFormat()
    assert options.manner == ChatFormat("hermes", "qwen3", "c")
    engine = make_engine(arguments)
    assert isinstance(engine, VllmEngine)
    assert engine._reasoning_parser == "qwen3"

"""What `contrail worker` makes of its options."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from actors.worker.worker import WorkerOptions
from api.cli import worker_commands
from api.cli.worker_commands import prefill_worker, worker
from tests.api.config.test_deployment_ref import running


@pytest.mark.parametrize("command", [worker, prefill_worker])
@pytest.mark.parametrize(("words", "stall_s"), [((), None), (("--engine-stall", "600"), 600.0)])
def test_how_long_a_step_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: object, words: tuple[str, ...], stall_s: float | None
) -> None:
    """Any worker's engine may be given its time; without a word it is what suits the engine."""
    told: list[WorkerOptions] = []

    async def serve(_connection: object, options: WorkerOptions, *_: object) -> str:
        told.append(options)
        return "asked to end"

    monkeypatch.setattr(worker_commands, "serve_worker", serve)
    data = running(tmp_path)
    result = CliRunner().invoke(command, ["--data", str(data.path), "--model", "tiny", *words])  # type: ignore[arg-type]
    assert (result.exit_code, [options.engine_stall_s for options in told]) == (0, [stall_s]), result.output


@pytest.mark.parametrize("command", [worker, prefill_worker])
@pytest.mark.parametrize(("words", "bytes_max"), [((), 256 * 2**20), (("--prompt-cache-max", "1GiB"), 2**30)])
def test_memory_for_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: object, words: tuple[str, ...], bytes_max: int
) -> None:
    """A worker keeps the token ids of long prompts in so much."""
    found: list[WorkerOptions] = []

    async def serve(_connection: object, options: WorkerOptions, *_: object) -> str:
        found.append(options)
        return "asked to end"

    monkeypatch.setattr(worker_commands, "serve_worker", serve)
    data = running(tmp_path)
    result = CliRunner().invoke(command, ["--data", str(data.path), "--model", "tiny", *words])  # type: ignore[arg-type]
    assert (result.exit_code, [options.prompts_bytes_max for options in found]) == (0, [bytes_max]), result.output


def test_memory_for_prompts_that_is_no_size(tmp_path: Path) -> None:
    data = running(tmp_path)
    result = CliRunner().invoke(worker, ["--data", str(data.path), "--model", "tiny", "--prompt-cache-max", "much"])
    assert result.exit_code
    assert "--prompt-cache-max: 'much' is not a size: write 64KiB, 512MiB or 50GiB" in str(result.exception)

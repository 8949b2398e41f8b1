"""Which GPUs workers get: in turn, as many as their engine takes, or those that the group names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.config.data_folder import DataFolder
from api.config.schema import WorkerGroup
from api.deployment.preflight import ModelSource
from api.deployment.process_specs import VARIABLE, GpuAssignment, visible_gpus, worker_specs
from core.errors import CallerError


def dealt(cards: GpuAssignment, /, **group: Any) -> list[str | None]:
    """What each worker of a group has in its environment."""
    wanted = msgspec.convert({"count": 2, **group}, WorkerGroup)
    specs = worker_specs(wanted, ModelSource("tiny", "/models/tiny"), DataFolder(Path("/data")), cards)
    return [spec.environment.get(VARIABLE) for spec in specs]


def test_each_worker_gets_cards_of_its_own() -> None:
    """Groups go on where the one before ended; when all cards are given, they are given again."""
    devices = GpuAssignment(("0", "1", "2", "5"))
    assert dealt(devices) == ["0", "1"]
    assert dealt(devices, engine="simulated") == [None, None]
    assert dealt(devices, engine_args={"tensor_parallel_size": 2}, count=1) == ["2,5"]
    assert dealt(devices, engine_args={"tensor_parallel_size": 2, "pipeline_parallel_size": "2"}) == ["0,1,2,5"] * 2


def test_a_group_may_name_them() -> None:
    """One entry for each worker, in turn; others' turns are not touched."""
    devices = GpuAssignment(("0", "1"))
    assert dealt(devices, devices=["4,5", "GPU-abc"], count=3) == ["4,5", "GPU-abc", "4,5"]
    assert dealt(devices) == ["0", "1"]
    for wrong in ({"devices": [" "]}, {"devices": ["0"], "engine": "simulated"}):
        with pytest.raises(msgspec.ValidationError, match="devices: they are for the engine vllm"):
            msgspec.convert(wrong, WorkerGroup)


def test_more_than_there_are_is_refused() -> None:
    """In words; without any card nothing is said, and the engine finds out what it runs on."""
    with pytest.raises(CallerError, match="group 'decode' want 4 GPUs each, and 2 can be seen"):
        dealt(GpuAssignment(("0", "1")), engine_args={"tensor_parallel_size": 4})
    assert dealt(GpuAssignment(()), engine_args={"tensor_parallel_size": 4}) == [None, None]


@pytest.mark.parametrize("given", ["two", -1, 1.5, [2], True])
def test_a_number_that_is_none_is_refused(given: Any) -> None:
    """Before anything is started; another engine's arguments are its own business."""
    arguments = {"engine_args": {"pipeline_parallel_size": given}}
    with pytest.raises(msgspec.ValidationError, match=r"engine_args\.pipeline_parallel_size: .* is not a whole number"):
        msgspec.convert(arguments, WorkerGroup)
    msgspec.convert({**arguments, "engine": "simulated"}, WorkerGroup)
    for none in (None, 0, "0"):
        assert dealt(GpuAssignment(("0", "1")), engine_args={"tensor_parallel_size": none}) == ["0", "1"]


def test_what_can_be_seen(tmp_path: Path) -> None:
    """What the environment names, an empty list too; else as many as the machine has cards, as CUDA counts them."""
    for name in ("nvidia10", "nvidia2", "nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ("0", "1", "2")
    assert visible_gpus({VARIABLE: "3, GPU-abc"}, tmp_path) == ("3", "GPU-abc")
    assert visible_gpus({VARIABLE: ""}, tmp_path) == ()
    assert visible_gpus({}, tmp_path / "none") == ()

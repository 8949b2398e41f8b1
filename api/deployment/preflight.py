"""Checks before any process starts, and the source of each model: built in, a folder, or the Hugging Face hub.

Each failure is one sentence that says what to do.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from actors.planning.forecast_process import check_forecaster
from actors.planning.planner_settings import ACT, KUBERNETES
from api.config.data_folder import DataFolder
from api.config.loading import Loaded
from api.config.planned_models import planned_sections
from api.config.profile_file import read_profile
from api.config.schema import OFF, Deployment, WorkerGroup, is_folder_name
from api.config.units import size_bytes
from core.errors import CallerError
from core.events.kv import DECODE, PREFILL
from core.keys import DeploymentKey

DISK_SHARE = 0.5
"""Share of the free disk that the log may reserve by default."""
NIXL = "nixl"
"""The library by which vLLM's engines fetch blocks from each other."""
LOG_BYTES_MIN = 64 * 2**20
"""A log of less is no history worth the name: a few minutes of a busy deployment."""


def check_workers(deployment: Deployment) -> None:
    """Every group's engine is installed and its model exists, and no planner sizes pods instead. The planner's profile,
    if it has one, can be read, and the library of its forecaster is installed."""
    if deployment.planner_mode == ACT and deployment.planner_hand == KUBERNETES:
        raise CallerError(
            "planner.hand: the workers of `contrail up` are no pods: start the parts alone, the planner by "
            "`contrail planner -f FILE --key-file KEY`"
        )
    if deployment.planner_mode != OFF:
        for planned in deployment.planned_groups:
            check_forecaster(planned.settings.predictor)
    for section in planned_sections(deployment.planner):
        if section.profile:
            read_profile(Path(section.profile))
    if not any(group.count for group in deployment.workers if group.role == DECODE):
        raise CallerError("there is no worker to start that answers requests: give --workers 1 or more")
    for group in deployment.workers:
        if group.attach is not None:
            check_template(group)
            continue
        check_engine(group.engine)
        _check_transfer(group)
        check_model(group)


def _check_transfer(group: WorkerGroup) -> None:
    """Blocks can be moved here, if the group's workers are to do so."""
    moves_blocks = group.role == PREFILL or group.remote_prefill
    if moves_blocks and group.engine == VLLM and importlib.util.find_spec(NIXL) is None:
        raise CallerError(
            f"worker group {group.name!r}: vLLM's blocks are moved by NIXL, which is not installed here: "
            "`pip install nixl`, or do without prefill workers"
        )


def check_copies(deployment: Deployment) -> None:
    """A log of several copies has servers to lie on: the private NATS is one."""
    if deployment.log.replicas > 1 and not deployment.log.nats:
        raise CallerError(
            f"log.replicas is {deployment.log.replicas}, which needs a NATS cluster of as many servers: "
            "give their addresses with --nats, or leave log.replicas at 1"
        )


def fit_log_to_disk(loaded: Loaded, data: Path) -> Deployment:
    """The deployment with a log that fits on the disk; CallerError if it was told a size that does not. What others'
    servers have room for they say themselves."""
    deployment = loaded.deployment
    if deployment.log.nats:
        return deployment
    free = shutil.disk_usage(_existing(data)).free
    asked = size_bytes(deployment.log.max_bytes)
    configured = "log.max_bytes" in loaded.origins
    if configured and asked > free:
        raise CallerError(
            f"log.max_bytes is {deployment.log.max_bytes}, but {data} has {free >> 20} MiB free: "
            "reserve less, or give another folder with --data"
        )
    if configured or asked <= free * DISK_SHARE:
        return deployment
    if free * DISK_SHARE < LOG_BYTES_MIN:
        raise CallerError(
            f"{data} has {free >> 20} MiB free; the log needs {LOG_BYTES_MIN >> 20} MiB at least and takes half of "
            "what is free: make room, give another folder with --data, or say log.max_bytes in the deployment file"
        )
    fitting = f"{max(int(free * DISK_SHARE) >> 20, 1)}MiB"
    return msgspec.structs.replace(deployment, log=msgspec.structs.replace(deployment.log, max_bytes=fitting))


def given_key(key_file: Path, data: DataFolder) -> DeploymentKey:
    """The key in that file. CallerError if the data folder has a key that it does not follow."""
    key = DeploymentKey.load(key_file)
    if not data.key.exists() or key.follows(there := DeploymentKey.load(data.key)):
        return key
    if there.follows(key):
        raise CallerError(
            f"{data.key} has generation {there.generation} of the key, and {key_file} generation {key.generation}: "
            f"copy {data.key} over it"
        )
    raise CallerError(
        f"{key_file} and {data.key} are keys of two deployments: leave --key-file out, or give another folder with "
        "--data"
    )


def check_key(deployment: Deployment, data: DataFolder) -> None:
    """CallerError if the log of a run before this one lies there and its key does not: a new one would fit nothing."""
    if not deployment.log.nats and data.nats.exists() and not data.key.exists():
        raise CallerError(
            f"{data.key} is missing, and the log in {data.nats} can be read with that key alone: put it back, or give "
            "another folder with --data"
        )


def check_metrics_file(deployment: Deployment) -> None:
    """CallerError if `metrics_file` cannot be written."""
    if deployment.metrics_file is None:
        return
    folder = Path(deployment.metrics_file).expanduser().absolute().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CallerError(
            f"metrics_file: {folder} is no folder that this user may write to: make it, or name a file elsewhere"
        )


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


TINY = "tiny"
VLLM = "vllm"
HUB_TIMEOUT_S = 10.0
"""Time for the hub to answer."""


class ModelSource(NamedTuple):
    """A model that is there."""

    name: str
    """The name for clients."""
    path: str
    """A folder, or the name on the hub; for a simulated engine the folder of its tokenizer."""


def check_engine(engine: str) -> None:
    """The engine is installed, else CallerError; it is not imported."""
    if engine == VLLM and importlib.util.find_spec("vllm") is None:
        raise CallerError(
            "vLLM is not installed here: run `make setup` in the project, or on GPUs `pip install -e '.[gpu]'`, or use "
            "--engine simulated, which needs none"
        )


def check_template(group: WorkerGroup) -> None:
    """The group's template exists if it is to have another than its model's, else CallerError."""
    if group.chat_template and not Path(group.chat_template).expanduser().is_file():
        raise CallerError(f"worker group {group.name!r}: there is no chat template at {group.chat_template}")


def check_model(group: WorkerGroup) -> None:
    """The group's model exists, and its template if it is to have another, else CallerError; nothing is downloaded."""
    check_template(group)
    if group.model == TINY:
        return
    folder = Path(group.model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise CallerError(f"{folder} holds no model: there is no config.json in it")
    elif is_folder_name(group.model):
        raise CallerError(f"there is no model at {folder}: give a folder with one, a name on the hub, or `tiny`")
    elif group.engine == VLLM:
        _check_on_hub(group.model)


def model_source(group: WorkerGroup, tiny_folder: Path, report: Callable[[str], None]) -> ModelSource:
    """The model, ready to be loaded; the built-in one is made if it is missing (some seconds)."""
    if group.attach is not None:
        return ModelSource(group.client_name, "")
    if group.model != TINY and (folder := Path(group.model).expanduser()).is_dir():
        return ModelSource(group.client_name, str(folder.resolve()))
    if group.model != TINY and group.engine == VLLM:
        return ModelSource(group.client_name, group.model)
    from actors.engines.tiny_model import ensure_tiny_checkpoint  # noqa: PLC0415 - numpy and tokenizers, only if needed

    return ModelSource(group.client_name, str(ensure_tiny_checkpoint(tiny_folder, report)))


def _check_on_hub(name: str) -> None:
    """The hub, or its local cache, has the model."""
    from huggingface_hub import HfApi, try_to_load_from_cache  # noqa: PLC0415 - most deployments never ask the hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError  # noqa: PLC0415

    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise CallerError(
            f"there is no model {name!r}, neither as a folder nor on the Hugging Face hub: mind the spelling, "
            "set HF_TOKEN if it is private, or use `tiny`"
        ) from error
    except HfHubHTTPError as error:
        raise CallerError(f"the Hugging Face hub does not give out {name!r}: {error}") from error
    except Exception as error:  # its HTTP library, and so its errors, differ between the hub client's versions
        raise CallerError(
            f"there is no folder {name!r}, and the Hugging Face hub cannot be asked for a model of this name "
            f"({error}): give a folder, or use `tiny`"
        ) from error

"""Where a model comes from: built in, a folder, or the Hugging Face hub. Asked before anything is started."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from api.config.schema import WorkerGroup, is_folder_name
from core.errors import CallerError

TINY = "tiny"
VLLM = "vllm"
HUB_TIMEOUT_S = 10.0
"""How long the hub may take to say whether it has a model."""


class ModelSource(NamedTuple):
    """A model that is there."""

    name: str
    """What clients call it."""
    path: str
    """A folder, or the name on the hub; for a simulated engine the folder whose tokenizer it borrows."""


def check_engine(engine: str) -> None:
    """The engine is installed, else CallerError; it is not imported."""
    if engine == VLLM and importlib.util.find_spec("vllm") is None:
        raise CallerError(
            "vLLM is not installed here: run `make setup` in the project, or on GPUs `pip install -e '.[gpu]'`, or use "
            "--engine simulated, which needs none"
        )


def check_model(group: WorkerGroup) -> None:
    """The group's model exists, and its template if it is to have another, else CallerError; nothing is downloaded."""
    if group.chat_template and not Path(group.chat_template).expanduser().is_file():
        raise CallerError(f"worker group {group.name!r}: there is no chat template at {group.chat_template}")
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


def model_source(group: WorkerGroup, tiny_folder: Path, say: Callable[[str], None]) -> ModelSource:
    """The model, ready to be loaded; the built-in one is made if it is missing (some seconds)."""
    if group.model != TINY and (folder := Path(group.model).expanduser()).is_dir():
        return ModelSource(group.client_name, str(folder.resolve()))
    if group.model != TINY and group.engine == VLLM:
        return ModelSource(group.client_name, group.model)
    from actors.engines.tiny_model import ensure_tiny_checkpoint  # noqa: PLC0415 - numpy and tokenizers, only if needed

    return ModelSource(group.client_name, str(ensure_tiny_checkpoint(tiny_folder, say)))


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

"""Guided answers of a model that reasons first: the grammar is for what comes behind that.

vLLM makes its reasoning parser in the scheduler, at the first guided request; one that does not fit the model's
tokenizer would end the engine there. So it is tried here, before the engine starts.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from core.errors import CallerError

_logger = logging.getLogger(__name__)


def guide_behind_reasoning(config: Any, name: str) -> None:
    """vLLM's configuration says so, if `name` is a reasoning parser of its own that fits; without one, all is guided.

    CallerError if the engine's own arguments name one that does not fit. Loads the tokenizer if there is one to try.
    """
    own = config.structured_outputs_config.reasoning_parser
    if not own and not name:
        return
    if (why := _objection(own or name, config)) is None:
        config.structured_outputs_config.reasoning_parser = own or name
    elif own:
        raise CallerError(f"engine argument reasoning_parser: {own} does not fit this model: {why}")
    else:
        _logger.warning("guided answers begin with the first token: vLLM has no fitting parser %s: %s", name, why)


def _objection(name: str, config: Any) -> str | None:
    tokenizer = import_module("vllm.tokenizers").cached_tokenizer_from_config(model_config=config.model_config)
    try:
        parser = import_module("vllm.reasoning").ReasoningParserManager.get_reasoning_parser(name)(tokenizer=tokenizer)
        parser.is_reasoning_end([0])
        parser.is_reasoning_end_streaming([0], [0])
    except Exception as error:  # noqa: BLE001 - each parser has its own way to find that its marks are missing
        return " ".join(str(error).split())
    return None

"""One request as the body of `/v1/completions` of `trtllm-serve`. Its answer is read as that of vLLM.

1. Without detokenization its answer has token ids in place of text. It refuses fields that it does not know, among them
   those by which vLLM is asked for token ids.
2. With logprobs it names tokens by their text, so that their ids would be guessed: they are refused.
3. Its priorities lie between 0 and 1 and count only under one of its policies: none is sent.
"""

from __future__ import annotations

from typing import Any

import orjson

from actors.engines.attached.call_checks import answer_room
from actors.engines.attached.completion_call import common_fields
from core.errors import CallerError
from core.generation import GenerateRequest, Guided, Sampling
from core.prompt import tokens_from_bytes


def trtllm_body(request: GenerateRequest, model: str, context_max: int) -> bytes:
    """The request for the server's model of that name; CallerError if it asks for what the server cannot do."""
    if request.adapter:
        raise CallerError("a TensorRT-LLM server does not tell blocks of adapters apart: ask for its own model")
    body: dict[str, Any] = {
        "model": model,
        "prompt": tokens_from_bytes(request.tokens),
        "stream": True,
        "stream_options": {"include_usage": True},
        "detokenize": False,
        "max_tokens": answer_room(request, context_max),
        **_sampling_fields(request.sampling),
    }
    return orjson.dumps(body)


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """All of them by the server's names."""
    if sampling.bad_words or sampling.allowed_token_ids:
        raise CallerError("a TensorRT-LLM server takes neither bad_words nor allowed_token_ids here: leave them out")
    if sampling.logprobs >= 0:
        raise CallerError("a TensorRT-LLM server names tokens of logprobs by their text: leave logprobs out")
    fields = common_fields(sampling)
    if sampling.guided is not None:
        fields["response_format"] = _response_format(sampling.guided)
    return fields


def _response_format(guided: Guided) -> dict[str, Any]:
    if guided.json_schema is not None:
        return {"type": "json_schema", "json_schema": orjson.Fragment(guided.json_schema)}
    if guided.json_object:
        return {"type": "json_object"}
    if guided.regex is not None:
        return {"type": "regex", "regex": guided.regex}
    if guided.grammar is not None:
        return {"type": "ebnf", "ebnf": guided.grammar}
    raise CallerError(
        "guide an answer of a TensorRT-LLM server by a JSON schema, any JSON object, a regex or a grammar"
    )

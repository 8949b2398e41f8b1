"""One generation in vLLM's terms: the arguments of its call, and what its answers say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import CallerError
from core.generation import GenerateRequest, Output, Sampling
from core.models import GenerationFailed
from core.prompt import tokens_from_bytes

FINISHES = {"stop": "stop", "length": "length", "abort": "abort", "repetition": "stop"}
"""vLLM's reasons to end, and ours."""


def arguments(
    request: GenerateRequest, vllm: Any, llm: Any, adapters: Mapping[str, str], moving: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The request as arguments of AsyncLLM.generate; what this engine does not use is left out.

    `moving` is what its KV connector is to do with the prompt's blocks.
    CallerError or ValueError if the request is wrong in itself.
    """
    prompt: dict[str, Any] = {"type": "token", "prompt_token_ids": tokens_from_bytes(request.tokens)}
    if request.cache_salt:
        prompt["cache_salt"] = request.cache_salt
    call: dict[str, Any] = {
        "prompt": prompt,
        "sampling_params": _sampling_params(request.sampling, vllm, moving),
        "request_id": request.id,
    }
    if request.adapter:
        call["lora_request"] = _lora_request(request.adapter, vllm, adapters)
    if llm.vllm_config.scheduler_config.policy == "priority":
        call["priority"] = request.priority
    if request.traceparent and llm.observability_config.otlp_traces_endpoint:
        call["trace_headers"] = {"traceparent": request.traceparent}
    return call


def output(result: Any, *, first: bool) -> Output:
    """What is new in a RequestOutput; GenerationFailed if the engine broke the request off."""
    completion = result.outputs[0]
    finish = completion.finish_reason
    if finish is not None and finish not in FINISHES:
        raise GenerationFailed(f"the engine broke off: {finish}")
    return Output(
        tokens=tuple(completion.token_ids),
        finish=None if finish is None else FINISHES[finish],
        cached_tokens=(result.num_cached_tokens or 0) if first else None,
    )


def _sampling_params(sampling: Sampling, vllm: Any, moving: Mapping[str, Any] | None) -> Any:
    return vllm.SamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        detokenize=False,
        output_kind=vllm.RequestOutputKind.DELTA,
        extra_args=None if moving is None else {"kv_transfer_params": dict(moving)},
    )


def _lora_request(name: str, vllm: Any, adapters: Mapping[str, str]) -> Any:
    if name not in adapters:
        raise CallerError(f"there is no adapter {name} here")
    number = sorted(adapters).index(name) + 1
    return vllm.LoRARequest(name, number, adapters[name])

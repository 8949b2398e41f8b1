"""One request in vLLM's terms: the arguments of its call, and what its answers say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from actors.engines.engine import check_prompt_logprobs
from actors.engines.engine_adapters import AdapterCopy
from core.errors import CallerError, EngineDead
from core.generation import TASK_EMBED, GenerateRequest, Guided, Output, Sampling, TokenLogprobs
from core.models import GenerationFailed
from core.prompt import tokens_from_bytes

FINISHES = {"stop": "stop", "length": "length", "repetition": "stop"}
"""vLLM's reasons to end, and ours."""
ABORTED = "abort"
"""vLLM's outcome for an answer that was broken off; not by us: an answer that we give up is not read to its end."""
LOGPROB_MIN = -9999.0
"""Stands for minus infinity, which JSON cannot say; vLLM's own server says the same."""
SENTENCE_MAX = 300
"""Characters of what vLLM says that are passed on: it repeats whole patterns."""


def arguments(
    request: GenerateRequest, vllm: Any, llm: Any, adapter: AdapterCopy | None, moving: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The request as arguments of AsyncLLM.generate, or of AsyncLLM.encode if it asks for an embedding; what this
    engine does not use is left out.

    `moving` is what its KV connector is to do with the prompt's blocks.
    CallerError or ValueError if the request is wrong in itself.
    """
    _check_task(request, llm)
    check_prompt_logprobs(request)
    prompt: dict[str, Any] = {"prompt_token_ids": tokens_from_bytes(request.tokens)}
    if request.sampling.guided is None:
        prompt["type"] = "token"  # looked at on the event loop; else in a thread, for a regex may take it seconds
    if request.cache_salt:
        prompt["cache_salt"] = request.cache_salt
    call: dict[str, Any] = {"prompt": prompt, "request_id": request.id}
    if request.task == TASK_EMBED:
        call["pooling_params"] = vllm.PoolingParams(task="embed")
    else:
        call["sampling_params"] = _sampling_params(request.sampling, vllm, moving)
    if adapter is not None:
        call["lora_request"] = lora_request(adapter, vllm)
    if llm.vllm_config.scheduler_config.policy == "priority":
        call["priority"] = request.priority
    if request.traceparent and llm.observability_config.otlp_traces_endpoint:
        call["trace_headers"] = {"traceparent": request.traceparent}
    return call


def output(result: Any, sampling: Sampling, *, first: bool) -> Output:
    """The new part of a RequestOutput; GenerationFailed if the engine broke the request off, EngineDead if it did so
    because it ends. CallerError if no token is left that a guided answer may go on with: that shows only as it is made.

    CallerError if no token is left that a guided answer may go on with: that shows only as it is made.
    """
    completion = result.outputs[0]
    finish = completion.finish_reason
    if finish == ABORTED:
        raise EngineDead("the engine aborted the request")
    if finish is not None and finish not in FINISHES:
        if sampling.guided is not None:
            raise CallerError(
                "the engine found no token that fits: simplify the schema, pattern or grammar, and see that "
                "allowed_token_ids, logit_bias and bad_words leave it some"
            )
        raise GenerationFailed(f"the engine broke off: {finish}")
    prompt = result.prompt_logprobs or () if first else ()
    return Output(
        tokens=tuple(completion.token_ids),
        finish=None if finish is None else FINISHES[finish],
        cached_tokens=(result.num_cached_tokens or 0) if first else None,
        engine_us=_engine_us(result.metrics) if first else None,
        logprobs=_logprobs_of(completion.logprobs or (), sampling.logprobs),
        prompt_logprobs=tuple(one and _of_token(one, sampling.prompt_logprobs) for one in prompt),
    )


def _engine_us(stats: Any) -> tuple[int, int] | None:
    """Time in the queue, and from the first pass to the first token; None without vLLM's statistics of the request,
    and where a later release does not have them."""
    queued, begun, first = (getattr(stats, name, 0.0) for name in ("queued_ts", "scheduled_ts", "first_token_ts"))
    return (int((begun - queued) * 1e6), int((first - begun) * 1e6)) if 0 < queued <= begun <= first else None


def embedding(result: Any) -> Output:
    """The single output of a pooling request."""
    numbers = result.outputs.data.float().numpy().astype("<f4")
    return Output(embedding=numbers.tobytes(), finish="stop", cached_tokens=result.num_cached_tokens or 0)


def sentence(error: Exception) -> str:
    """vLLM's objection to a request, on one line, without the values that it repeats."""
    text = " ".join(str(error.args[0] if error.args else error).split())
    return text if len(text) <= SENTENCE_MAX else f"{text[:SENTENCE_MAX]}…"


def _check_task(request: GenerateRequest, llm: Any) -> None:
    pools = llm.vllm_config.model_config.runner_type == "pooling"
    if request.task == TASK_EMBED and not pools:
        raise CallerError("this model makes no embeddings here: its workers were not started with `runner: pooling`")
    if request.task != TASK_EMBED and pools:
        raise CallerError("this model only makes embeddings here: its workers were started with `runner: pooling`")


def _logprobs_of(positions: Iterable[Mapping[int, Any]], top: int) -> tuple[TokenLogprobs, ...]:
    return tuple(_of_token(position, top) for position in positions)


def _of_token(position: Mapping[int, Any], top: int) -> TokenLogprobs:
    """vLLM names the token itself first, then the likeliest by rank; among these it stands once more, or not."""
    ranked = {candidate.rank: (token, max(candidate.logprob, LOGPROB_MIN)) for token, candidate in position.items()}
    token, own = next(iter(position.items()))
    best = tuple(ranked[rank] for rank in range(1, top + 1) if rank in ranked)
    return TokenLogprobs(token, max(own.logprob, LOGPROB_MIN), best, own.rank or 0)


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
        logit_bias=dict(sampling.logit_bias) or None,
        allowed_token_ids=list(sampling.allowed_token_ids) or None,
        bad_words=list(sampling.bad_words) or None,
        logprobs=None if sampling.logprobs < 0 else sampling.logprobs,
        prompt_logprobs=None if sampling.prompt_logprobs < 0 else sampling.prompt_logprobs,
        structured_outputs=None if sampling.guided is None else _structured(sampling.guided, vllm),
        detokenize=False,
        output_kind=vllm.RequestOutputKind.DELTA,
        extra_args=None if moving is None else {"kv_transfer_params": dict(moving)},
    )


def _structured(guided: Guided, vllm: Any) -> Any:
    kinds = (guided.json_schema, guided.json_object or None, guided.regex, guided.choices or None, guided.grammar)
    if sum(kind is not None for kind in kinds) != 1:
        raise CallerError("guide an answer by one thing: a JSON schema, any JSON object, a regex, choices or a grammar")
    return vllm.StructuredOutputsParams(
        json=guided.json_schema,
        json_object=guided.json_object or None,
        regex=guided.regex,
        choice=list(guided.choices) or None,
        grammar=guided.grammar,
    )


def lora_request(adapter: AdapterCopy, vllm: Any) -> Any:
    """The adapter in vLLM's terms."""
    return vllm.LoRARequest(adapter.id, adapter.number, str(adapter.folder))

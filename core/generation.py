"""Generation: the request to an engine and its outputs, tokens in and tokens out."""

from __future__ import annotations

from typing import Protocol

import msgspec

from core.ids import RequestId
from core.kv_transfer import FetchSource


class Guided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Constraint on an answer's text; exactly one field is given."""

    json_schema: str | None = None
    """A JSON schema, as JSON text."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    choices: tuple[str, ...] = ()
    grammar: str | None = None
    """In the engine's grammar language (vLLM: EBNF)."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters. The defaults are those of OpenAI's API; the names are vLLM's."""

    max_tokens: int
    """At most this many new tokens; always set, at least 1."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids, ascending, and what is added to their logits."""
    allowed_token_ids: tuple[int, ...] = ()
    """If any: no other token is chosen."""
    bad_words: tuple[str, ...] = ()
    """Texts that must not appear."""
    logprobs: int = -1
    """-1: none are told; 0: of each chosen token; above: of so many of the likeliest as well."""
    prompt_logprobs: int = -1
    """The same of the prompt's tokens."""
    guided: Guided | None = None


PRIORITY_MAX = 2**31 - 1
"""A priority lies between this number and its negative."""


def engine_priority(tenant: str | None, priority: int) -> int:
    """The priority in the queue of an engine, which tenants share: 0 if the request has a tenant."""
    return 0 if tenant else priority


TASK_GENERATE = "generate"
TASK_EMBED = "embed"


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One generation, as it travels to a worker and into its engine."""

    id: RequestId
    tokens: bytes
    """The prompt's token ids, little-endian uint32."""
    sampling: Sampling
    adapter: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    """Lower is served first, as in vLLM; among the requests of one tenant. Workers get `engine_priority`."""
    tenant: str | None = None
    session: str = ""
    """The client's name of the session; the log has a keyed hash of it …"""
    session_parent: str = ""
    """… and of the session that began that one, if the client names it."""
    traceparent: str | None = None
    """W3C trace context, passed through."""
    deadline_ms: int | None = None
    """Time that the client still waits: a duration, because clocks of two machines are never compared."""
    gather: bool = False
    """The client takes the answer whole: after the first tokens, outputs may come together, which costs less."""
    task: str = TASK_GENERATE
    """The task of the engine: to generate tokens, or with TASK_EMBED the prompt's embedding."""
    fetch: FetchSource | None = None
    """Another engine with the start of the prompt in its host; set by the router alone. Blocks that do not come from
    there in time are computed."""
    skip_tiers: tuple[str, ...] = ()
    """Slower tiers (`core.settings.TIERS`) from which the engine loads nothing; a worker has them from the router."""


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hint of the router to the worker, sent with the request."""

    attempt: int = 0
    """Which decision of the request this is, from 0."""
    prefer: str = ""
    """The prefill worker that holds most of the prompt, as the router sees it."""
    prefer_tokens: int = 0
    """Tokens of the prompt that it holds."""
    prefill_tokens: int = 0
    """Prompt tokens that the router expects this worker to compute."""
    if_free: bool = False
    """To be declined if prompts of other replicas are being computed, with which it does not fit into one pass: the
    router would rather choose again."""
    pool_tokens: int = 0
    """Tokens of the prompt's start that this worker would load from its pools, and take from its cache, as the router
    sees it; 0 if none lies in a pool alone."""
    skip_tiers: tuple[str, ...] = ()
    """Tiers that are slower than computing: nothing is to be loaded from them."""


NO_HINT = Hint()


class PrefillReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decode worker's verdict on where to compute a prompt, with its inputs, and what came of it."""

    remote: bool
    reason: str
    """`projections.policy.prefill_choice.PREFILL_REASONS`."""
    uncached_tokens: int
    """Of the prompt, less what this worker's cache held."""
    queued: int
    """Jobs that were still unclaimed."""
    workers: int
    """Prefill workers that could have taken it."""
    min_tokens: int
    """The settings that it was judged by: `remote_prefill_min_tokens` …"""
    queue_max: int
    """… and `prefill_queue_max`."""
    log_away: bool = False
    busy: bool = False
    """The same blocks are being computed or pulled here for another request."""
    job: str = ""
    worker: str = ""
    """The prefill worker that computed the prompt; empty if this worker did."""
    outcome: str = ""
    """Of a job: `pulled`, or why this worker computed the prompt after all (`core.kv_transfer.RECOMPUTED`)."""
    detail: str = ""
    pulled_tokens: int = 0
    wait_ms: int = 0
    """From asking to the answer, or to giving up."""
    pull_ms: int = 0
    rules: int = 1
    """Version of the rules of the verdict, as `RequestRouted.decide_version`."""
    remote_cached_tokens: int = 0
    """Of a pulled prompt: its tokens that the prefill worker took from its own cache …"""
    compute_ms: int = 0
    """… and the time in which it computed the others."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """One token with its natural logarithm of probability, and those of the likeliest in its place, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0
    """Rank of the token among all tokens at its position, from 1; 0 if unknown."""

    @staticmethod
    def ranked(token: int, logprob: float | None, top: tuple[tuple[int, float], ...]) -> TokenLogprobs:
        """Of an engine that tells no ranks: the rank is known only among the likeliest. No probability counts as 1."""
        rank = next((rank for rank, (candidate, _) in enumerate(top, 1) if candidate == token), 0)
        return TokenLogprobs(token, 0.0 if logprob is None else logprob, top, rank)


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New tokens of one generation; several that arrive together leave together."""

    tokens: tuple[int, ...] = ()
    finish: str | None = None
    """`stop`, `length` or `abort` with the last tokens; None while it goes on."""
    cached_tokens: int | None = None
    """Prompt tokens that the engine took from its own cache; set once, with the first tokens, or with the last ones by
    an engine that learns it then. Never set by one that does not know."""
    prefill: PrefillReport | None = None
    """Set once, with the first tokens, by a worker that can have prompts computed elsewhere."""
    engine_us: tuple[int, int] | None = None
    """Time of the request in the engine's queue, and from its first pass to its first token, by the engine's clock; set
    once, with the first tokens. None from workers of earlier versions, and from engines that do not tell it."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `tokens`, if they were asked for."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    """One for each token of the prompt, None for the first; set once, with the first tokens, if asked for."""
    embedding: bytes = b""
    """Little-endian float32, in the only output of a request for it, with `finish` `stop`."""


def is_plain_token(output: Output) -> bool:
    """True for one token in the middle of an answer, and nothing more."""
    tokens = output.tokens
    return len(tokens) == 1 and output == Output(tokens=tokens)


class IntakeTimes(msgspec.Struct, frozen=True):
    """The time of a request in its front end before the router had it, in microseconds."""

    loop_us: int
    """From when the kernel had the request's head to when its route began: the event loop was busy, or the connection
    with an earlier request."""
    body_us: int
    """From there until the body was whole: its client was sending."""
    prepare_us: int
    """From there to the router: decoding, rendering, tokenizing, and the wait for a thread that does so."""


class OutputConsumer(Protocol):
    """Receives one generation's outputs as they come, and knows how the answer ended for its client."""

    def on_output(self, output: Output) -> bool:
        """False if it wants no more. An exception raised here ends the generation, and `run` raises it."""

    def outcome(self) -> str | None:
        """The end of the answer for the client (`stop`, `length`); None if it has not ended, or if the client went
        away."""

    def on_routed(self, worker_name: str) -> None:
        """The request was sent to the worker of this name; called once for each attempt, and must not fail."""

    def intake(self) -> IntakeTimes | None:
        """The time of the request in its front end until now; None if that is not known."""

"""Why an answer of ours may differ from vLLM's own: one sentence for each reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from tests.e2e.compare_fields import ABSENT, Difference

NULL = r"null|NoneType"
NOT_THERE = rf"{ABSENT}|{NULL}"
ANY = r".*"
CUT_CHARACTER = r"\ufffd"
"""As JSON writes the sign for it."""


class Rule(NamedTuple):
    """Explains a difference whose field and two values all match, each as a whole."""

    where: str
    """`field`, or `case; field`."""
    ours: str
    theirs: str
    why: str
    alike: Callable[[str, str], bool] = lambda _ours, _theirs: True
    """What else must be true of both values."""

    def explains(self, difference: Difference) -> bool:
        """Whether it does."""
        case, _, field = self.where.rpartition("; ")
        pairs = ((field, difference.path), (self.ours, difference.ours), (self.theirs, difference.theirs))
        if case and re.fullmatch(case, difference.case) is None:
            return False
        matches = all(_matches(pattern, value) for pattern, value in pairs)
        return matches and self.alike(difference.ours, difference.theirs)


def _matches(pattern: str, value: str) -> bool:
    return re.fullmatch(pattern, value, re.DOTALL) is not None


def _cut_in_a_character(ours: str, theirs: str) -> bool:
    return ours == f'{theirs[:-1]}{CUT_CHARACTER}"'


def _but_for_blanks(ours: str, theirs: str) -> bool:
    mine, other = (str(json.loads(value)).replace(" ", "") for value in (ours, theirs))
    return mine == other


def _one_further(ours: str, theirs: str) -> bool:
    return int(ours) == int(theirs) + 1


RULES: tuple[Rule, ...] = (
    # whole requests
    Rule(
        "chat, n greedy; status", "200: .*", "400: .*n must be 1.*",
        "OpenAI answers several choices at temperature 0; vLLM refuses them",
    ),
    Rule(
        "chat, max_tokens beyond the context; status", "200: .*", "400: .*100000.*",
        "cut to what the context leaves: agents ask for 32 000 tokens, whatever the model; vLLM refuses them",
    ),
    Rule(
        "error: role; status", "400: .*messages.0..role.*", "200: .*",
        "OpenAI refuses a role that it does not know; vLLM's template writes it into the prompt",
    ),
    Rule("model; status", "200: .*", "404: .*", "OpenAI's route for one model, which vLLM does not have"),
    # errors
    Rule(
        "error: (no such route|wrong method); (error|detail)", ANY, ANY,
        "OpenAI's shape; vLLM's framework has its own",
    ),
    Rule(
        "error: .*; error.type", '"invalid_request_error"', '"[A-Z].*"',
        "OpenAI's type for every mistake of the caller; vLLM names the status",
    ),
    Rule(
        "error: .*; error.code", r'null|"[a-z_]+"', r"\d+",
        "OpenAI's code is a word or null; vLLM repeats the status",
    ),
    Rule(
        "error: .*; error.param", r'"[\w.\[\]]+"', ANY,
        "the parameter at fault, by the name that the caller gave it",
    ),
    Rule("error: .*; error.message", '".+', '".+', "our own words: the parameter, and what it must be"),
    Rule("error: .* message; request_id", '"req-.*', ABSENT, "Anthropic's, always there in an error"),
    # extras
    Rule(
        r"(fields\.)?(response\.)?(choices\[\]\.(message\.)?)?(token_ids|prompt_token_ids|prompt_logprobs)",
        ABSENT, NULL,
        "there if they are asked for (`return_token_ids`, `prompt_logprobs`); vLLM sends null if not",
    ),
    Rule(
        r"(fields\.)?(response\.)?(choices\[\]\.(message\.)?)?"
        "(routed_experts|prompt_text|kv_transfer_params|ec_transfer_params|metrics)", ABSENT, NULL,
        "vLLM's own, which nobody can ask for here; vLLM sends null",
    ),
    Rule(
        r"choices\[\]\.message\.(annotations|audio|function_call)", ABSENT, NULL,
        "OpenAI's, for searches, speech and calls of the old kind, which nobody asked for; its clients say None",
    ),
    Rule(
        r"completion, echo with logprobs; choices\[\]\.prompt_logprobs", ABSENT, ANY,
        "not asked for: vLLM needs them for the echo, and shows them too",
    ),
    Rule(
        r"completion, echo streamed; fields\.choices\[\]\.prompt_token_ids\[\]", ABSENT, "int",
        "not asked for: vLLM needs them for the echo, and shows them too",
    ),
    Rule(
        r"(fields\.)?system_fingerprint", NOT_THERE, '"vllm-.*"|str',
        "OpenAI may leave it null, and any of several workers answers; `/v1/models` names the engine",
    ),
    Rule(
        "(chat, user and metadata|responses); service_tier", '"default"', 'null|"auto"',
        "OpenAI names the tier that served",
    ),
    # usage
    Rule(
        r"(fields\.)?usage\.completion_tokens_details(\.reasoning_tokens)?",
        r'int|\{"reasoning_tokens": 0\}', NOT_THERE,
        "OpenAI's count, which vLLM leaves out",
    ),
    Rule(
        r"(fields\.)?usage\.prompt_tokens_details\.(created_cache_tokens|multimodal_tokens)", ABSENT, r"null|int|\d+",
        "vLLM's own counts",
    ),
    Rule(".*usage; fields.usage", "NoneType", ABSENT, "OpenAI: with `include_usage` each event but the last has null"),
    Rule(
        r"chat, usage all along; fields\.usage\.completion_tokens_details", ABSENT, "NoneType",
        "OpenAI's count, which vLLM leaves out",
    ),
    Rule(
        r"completion, echo alone; usage\.(completion|total)_tokens", r"\d+", r"\d+",
        "no token was asked for, so none is counted; vLLM counts the one that it drops",
        lambda ours, theirs: _one_further(theirs, ours),
    ),
    # text and logprobs
    Rule(
        r"choices\[\]\.(text|message\.content)", ANY, ANY,
        "the answer was cut inside a character: ours ends as the tokens decode, vLLM drops the part",
        _cut_in_a_character,
    ),
    Rule(
        r"choices\[\]\.logprobs\.content\[\]\.(top_logprobs\[\]\.)?(token|bytes)",
        r'"(\\\\x[0-9a-f]{2})+"|\[[\d, ]+\]', r'""|\[\]',
        "part of a character, written as OpenAI does (`\\xe1`, its byte); vLLM says nothing of it",
    ),
    Rule(
        r"(fields\.)?choices\[\]\.logprobs\.(tokens\[\]|top_logprobs\[\]\.(bytes:.*)?)",
        rf'"bytes:.*"|-?[\d.]+|float|{ABSENT}', rf'""|-?[\d.]+|float|{ABSENT}',
        "part of a character, written as OpenAI does (`bytes:\\xe1`); vLLM calls all of them `` (empty)",
    ),
    Rule(
        r"completion, (echo with )?logprobs; choices\[\]\.logprobs\.text_offset\[\]", r"\d+", r"\d+",
        "a part of a character has a place in the text (U+FFFD), which vLLM's offsets leave out", _one_further,
    ),
    Rule(
        r"completion, ids as text; choices\[\]\.logprobs\.text_offset\[\]", r"\d+", r"\d+",
        "places in the text; vLLM counts the letters of `token_id:5`",
    ),
    Rule(r"(fields\.)?choices\[\]\.logprobs\.refusal", NULL, ABSENT, "OpenAI's, always there"),
    Rule(
        r"completion, logprobs streamed; fields\.choices\[\]\.logprobs", "NoneType", ABSENT,
        "how the choice ended is an event by itself, without a token",
    ),
    Rule(
        r"tools, .*streamed; fields\.choices\[\]\.delta\.content", "str", "NoneType, str",
        "an event with a piece of a call has no content; vLLM's says null",
    ),
    # calls
    Rule(
        r"tools, (required|named); choices\[\]\.message\.content", "null", '""',
        "OpenAI's answers with calls alone have no content; vLLM's have an empty one",
    ),
    Rule(
        r"tools, (required|named).*; (choices\[\]\.message\.tool_calls\[\]\.function\.arguments|said\.0\.0)", ANY, ANY,
        "the same but for blanks: ours are what the model wrote, vLLM writes them anew if they are not streamed",
        _but_for_blanks,
    ),
    Rule(
        r"tools, (required|named); usage\.(completion|total)_tokens", r"\d+", r"\d+",
        "the engine is held to a JSON list of calls, or one call's arguments; vLLM holds it to the parser's own marks",
    ),
    # models
    Rule(
        r"models; data\[\]\.(context_max|engine|workers)", ANY, ABSENT,
        "ours: the context, the engine and how many workers",
    ),
    Rule(
        r"models; data\[\]\.(owned_by|root)", '"(contrail|tiny)"', '"(vllm|/.*)"',
        "whose it is; no path of the server is told",
    ),
    Rule(r"models; data\[\]\.permission", ABSENT, ANY, "OpenAI has dropped it"),
    # responses
    Rule(
        r"responses.*; (output\[\]\.status|types\[\])", '"(response.)?incomplete"', '"(response.)?completed"',
        "`max_output_tokens` cut it off: OpenAI calls that incomplete, as vLLM's own `status` does",
    ),
    Rule(
        r"responses.*; (fields\.)?(response\.)?(frequency_penalty|presence_penalty|input_messages|output_messages"
        r"|prompt|output\[\]\.phase|item\.phase|usage\..*(_per_turn|tool_output_tokens))",
        ABSENT, r"null|NoneType|0\.0|float|\[\]|0|int",
        "vLLM's own counts and settings, and its nulls",
    ),
    Rule(
        r"responses.*; (fields\.)?(response\.)?(output\[\]\.content\[\]|item\.content\[\]|part)\.logprobs",
        rf"\[\]|{ABSENT}", NULL,
        "OpenAI sends an empty list where none were asked for",
    ),
    Rule(
        r"responses.*; (fields\.)?(response\.)?(completed_at|error|prompt_cache_key|safety_identifier|store)",
        "null|NoneType|false|bool", ABSENT, "OpenAI's, always there",
    ),
    Rule(
        r"responses.*; (fields\.response\.)?(metadata|reasoning|text|top_logprobs|tool_choice)(\..*)?",
        ANY, f'{NOT_THERE}|"none"',
        "OpenAI answers with the defaults that it computed with; vLLM with null",
    ),
    # messages
    Rule(
        r"messages.*; (fields\.message\.)?(usage\.cache_(creation|read)_input_tokens|stop_sequence)",
        r"int|null|\d+", ABSENT,
        "Anthropic's, always there",
    ),
    Rule("messages, counted; context_management", ABSENT, ANY, "of an Anthropic beta that nobody asked for"),
)  # fmt: skip
"""The first that explains a difference counts."""


def rule_of(difference: Difference) -> Rule | None:
    """What explains it, if anything does."""
    return next((rule for rule in RULES if rule.explains(difference)), None)

"""Fields of the bodies, OpenAI's and vLLM's: what reaches the engine, and what is seen of it in the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from api.openai.request import preprocessor
from api.parsers.output_parser import EMPTY_DELTA, Delta, OutputParser
from api.parsers.tool_calls import ToolDelta
from core.generation import Output, Sampling
from core.prompt import tokens_from_bytes
from tests.api.conftest import Api
from tests.api.scripted import CONTEXT_MAX, END, ids, spoken

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ASKED = [{"role": "user", "content": "hi"}]
IGNORED = {
    "user": "me",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "spaces_between_special_tokens": False,
    "length_penalty": 1.0,
    "safety_identifier": "x",
    "prompt_cache_key": "y",
    "prediction": {"type": "content", "content": "hi"},
    "verbosity": "low",
    "nobody": {"knows": "this"},
}
NULL = ("max_tokens", "stop", "seed", "n", "logit_bias", "tools", "top_logprobs", "stream_options", "metadata", "user")


async def asked(api: Api, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    """The answer to a chat or a completion with these fields."""
    answer = await api.http.post(path, json={"model": "tiny", "messages": ASKED, "prompt": "a log"} | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def events(api: Api, path: str = CHAT, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "tiny", "messages": ASKED, "prompt": "a log", "stream": True} | fields
    *told, _ = (await api.http.post(path, json=body)).text.strip().split("\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in told]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_every_field_of_sampling_reaches_the_engine(api: Api, path: str) -> None:
    """In the engine's own terms; ids of logit_bias are sorted."""
    fields = {
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 3,
        "min_p": 0.125,
        "seed": 5,
        "stop_token_ids": [7],
        "min_tokens": 2,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "logit_bias": {"31": -100, "4": 2.5},
        "allowed_token_ids": [4, 31],
        "bad_words": ["never"],
    }
    await asked(api, path, **fields)
    assert api.backend.requests[0].sampling == Sampling(
        max_tokens=9,
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        min_p=0.125,
        seed=5,
        stop_token_ids=(0, END, 7),
        min_tokens=2,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.5,
        logit_bias=((4, 2.5), (31, -100.0)),
        allowed_token_ids=(4, 31),
        bad_words=("never",),
    )


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_what_changes_nothing_is_taken(api: Api, path: str) -> None:
    """Fields about accounting and fields that nobody knows; null is the same as not given."""
    plain = await asked(api, path)
    for fields in (IGNORED, dict.fromkeys(NULL)):
        answer = await asked(api, path, **fields)
        assert answer["choices"] == plain["choices"]
        assert api.backend.requests[-1].sampling == api.backend.requests[0].sampling


async def test_the_exact_answer(api: Api) -> None:
    """Every field of both routes, and no other."""
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": len(ids("hello")) + 1,
        "total_tokens": 5 + len(ids("hello")) + 1,
        "prompt_tokens_details": {"cached_tokens": 7},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    chat, text = await asked(api, service_tier="auto"), await asked(api, COMPLETIONS, prompt=[5, 6, 7, 8, 9])
    created = chat.pop("created")
    assert text.pop("created") >= created > 1_700_000_000
    assert chat.pop("id").startswith("chatcmpl-")
    assert text.pop("id").startswith("cmpl-")
    end = {"logprobs": None, "finish_reason": "stop", "stop_reason": None}
    message = {"role": "assistant", "content": "hello", "refusal": None, "reasoning": None}
    prompt = len(ids("<|start|><|user|>hi<|end|><|assistant|>"))
    counted = usage | {"prompt_tokens": prompt, "total_tokens": usage["total_tokens"] - 5 + prompt}  # type: ignore[operator]
    shared = {"model": "tiny", "system_fingerprint": None}
    assert chat == shared | {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, **end}],
        "usage": counted,
        "service_tier": "default",
    }
    assert text == shared | {
        "object": "text_completion",
        "choices": [{"index": 0, "text": "hello", **end}],
        "usage": usage,
        "service_tier": None,
    }


async def test_the_exact_stream(api: Api) -> None:
    """Of a chat: the role, texts, the end, `[DONE]`; a completion has no role."""
    api.backend.script = spoken("a", "b", finish="length")
    told = await events(api)
    assert {key: value for key, value in told[0].items() if key not in ("id", "created", "choices")} == {
        "object": "chat.completion.chunk",
        "model": "tiny",
    }
    going = {"index": 0, "logprobs": None, "finish_reason": None}
    last = {"index": 0, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    assert [it for event in told for it in event["choices"]] == [
        going | {"delta": {"role": "assistant", "content": ""}},
        going | {"delta": {"content": "a"}},
        going | {"delta": {"content": "b"}},
        last | {"delta": {}},
    ]
    told = await events(api, COMPLETIONS)
    assert [it for event in told for it in event["choices"]] == [
        going | {"text": "a"},
        going | {"text": "b"},
        last | {"text": ""},
    ]


@pytest.mark.parametrize("options", [{}, {"n": 2}, {"logprobs": 0}])
async def test_usage_with_every_chunk(api: Api, options: dict[str, Any]) -> None:
    """`continuous_usage_stats` counts each choice for itself; the last chunk counts all."""
    api.backend.script = [Output(tokens=ids("abc")), Output(tokens=(*ids("d"), END), finish="stop")]
    usage = {"include_usage": True, "continuous_usage_stats": True}
    told = await events(api, COMPLETIONS, prompt=[5, 6], stream_options=usage, **options)
    first = [event["usage"] for event in told if event["choices"] and event["choices"][0]["index"] == 0]
    assert [it["completion_tokens"] for it in first][-2:] == [5, 5]
    assert first[0]["completion_tokens"] == 3
    assert {it["prompt_tokens"] for it in first} == {2}
    assert told[-1]["usage"]["completion_tokens"] == 5 * options.get("n", 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({"stop": ["of"]}, "a log ", "of"),
        ({"stop": "of", "include_stop_str_in_output": True}, "a log of", "of"),
        ({"stop_token_ids": [ids("!")[0]]}, "a log of it", ids("!")[0]),
        ({"stop_token_ids": [ids("!")[0]], "include_stop_str_in_output": True}, "a log of it!", ids("!")[0]),
        ({}, "a log of it!", None),
    ],
)
async def test_why_an_answer_stopped(
    api: Api, fields: dict[str, Any], text: str, reason: str | int | None, stream: bool
) -> None:
    """vLLM's stop_reason: the string, the token that was asked for, or null for the model's own end."""
    end = (*ids("!"),) if "stop_token_ids" in fields else (*ids("!"), END)
    api.backend.script = [Output(tokens=ids("a log")), Output(tokens=ids(" of it")), Output(tokens=end, finish="stop")]
    if stream:
        choices = [event["choices"][0] for event in await events(api, COMPLETIONS, **fields)]
        assert "".join(it["text"] for it in choices) == text
        choice = choices[-1]
    else:
        choice = (await asked(api, COMPLETIONS, **fields))["choices"][0]
        assert choice["text"] == text
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", reason)


async def test_the_models_further_ends_are_named(api: Api) -> None:
    """Ends that only its generation config lists are told as the reason, as vLLM does."""
    api.backend.script = [Output(tokens=(*ids("a"), 0), finish="stop")]
    choice = (await asked(api))["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("a", 0)


async def test_special_tokens_are_shown_if_asked_for(api: Api) -> None:
    """The end token is not: it ended the answer."""
    api.backend.script = [Output(tokens=(3, *ids("a"), END), finish="stop")]
    assert (await asked(api))["choices"][0]["message"]["content"] == "a"
    shown = await asked(api, skip_special_tokens=False)
    assert shown["choices"][0]["message"]["content"] == "<|user|>a"


async def sent(api: Api, path: str, **fields: Any) -> list[int]:
    await asked(api, path, **fields)
    return tokens_from_bytes(api.backend.requests[-1].tokens)


async def test_special_tokens_of_prompts(api: Api) -> None:
    """Completions have them unless told otherwise, chats the other way round."""
    assert await sent(api, COMPLETIONS) == [0, *ids("a log")]
    assert await sent(api, COMPLETIONS, add_special_tokens=False) == list(ids("a log"))
    assert await sent(api, CHAT) == list(ids("<|start|><|user|>hi<|end|><|assistant|>"))
    assert await sent(api, CHAT, add_special_tokens=True) == [0, *ids("<|start|><|user|>hi<|end|><|assistant|>")]


async def test_prompts_are_truncated(api: Api) -> None:
    """The last tokens are kept, or the first ones; -1 leaves room for the answer. Texts and ids alike."""
    text = "a choice rests on what its cache holds"
    whole = [0, *ids(text)]
    for prompt in (text, whole):
        assert await sent(api, COMPLETIONS, prompt=prompt, truncate_prompt_tokens=4) == whole[-4:]
        keep = {"prompt": prompt, "truncate_prompt_tokens": 4, "truncation_side": "right"}
        assert await sent(api, COMPLETIONS, **keep) == whole[:4]
        assert await sent(api, COMPLETIONS, prompt=prompt, truncate_prompt_tokens=CONTEXT_MAX) == whole
    long = "a b " * 5000
    kept = await sent(api, COMPLETIONS, prompt=long, truncate_prompt_tokens=-1, max_tokens=50)
    assert kept == list(ids(long))[-(CONTEXT_MAX - 50) :]
    kept = await sent(api, CHAT, messages=[{"role": "user", "content": long}], truncate_prompt_tokens=8)
    assert kept[-2:] == list(ids("<|end|><|assistant|>"))
    assert len(kept) == 8
    api.backend.script = spoken("!")
    answer = await asked(api, COMPLETIONS, prompt="b b b", truncate_prompt_tokens=2, echo=True)
    assert answer["choices"][0]["text"] == " b!" or answer["choices"][0]["text"] == "b!"


async def test_the_body_may_name_the_request(api: Api) -> None:
    """A header comes first; the answer's header has the same id."""
    answer = await api.http.post(COMPLETIONS, json={"model": "tiny", "prompt": "a", "request_id": "mine"})
    assert (answer.json()["id"], answer.headers["x-request-id"]) == ("cmpl-mine", "mine")
    body = {"model": "tiny", "prompt": "a", "request_id": "mine"}
    answer = await api.http.post(COMPLETIONS, json=body, headers={"x-request-id": "first"})
    assert (answer.json()["id"], answer.headers["x-request-id"]) == ("cmpl-first", "first")
    answer = await api.http.post(COMPLETIONS, json=body, headers={"x-request-id": "no good {}"})
    assert (answer.json()["id"], answer.headers["x-request-id"]) == ("cmpl-mine", "mine")
    assert [it.id for it in api.backend.requests] == ["mine", "first", "mine"]


class FakeParser:
    """Text between [ and ] is a call, text before | is reasoning, the rest is text."""

    keeps_special_tokens = True

    def __init__(self) -> None:
        self.called = False
        self.tokens: list[int] = []
        self._text = ""

    def push(self, text: str, tokens: Sequence[int]) -> Delta:
        self.tokens += tokens
        self._text += text
        if text == "[":
            self.called = True
            return Delta(tools=(ToolDelta(0, "call-1", "look", ""),))
        if text and text in "why?":
            return Delta(reasoning=text)
        if not text:
            return EMPTY_DELTA
        return Delta(tools=(ToolDelta(0, arguments=text),)) if self.called else Delta(text)

    def finish(self) -> Delta:
        return Delta(text="<" + str(len(self._text)) + ">") if not self.called else EMPTY_DELTA


@pytest.fixture
def parsers(monkeypatch: pytest.MonkeyPatch) -> list[FakeParser]:
    """Every choice of a chat gets one of its own."""
    made: list[FakeParser] = []

    def select_parser(*_: Any) -> OutputParser:
        made.append(FakeParser())
        return made[-1]

    monkeypatch.setattr(preprocessor, "select_parser", select_parser)
    return made


async def test_calls_and_reasoning_are_told(api: Api, parsers: list[FakeParser]) -> None:
    """What the parser finds; a call ends the choice with `tool_calls`, and reasoning is counted."""
    api.backend.script = [*(Output(tokens=ids(it)) for it in ("why?", "[", "{}")), Output(tokens=(END,), finish="stop")]
    answer = await asked(api, n=2)
    call = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    for choice in answer["choices"]:
        assert choice["message"] == {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "reasoning": "why?",
            "reasoning_content": "why?",
            "tool_calls": [call],
        }
        assert choice["finish_reason"] == "tool_calls"
    counted = 2 * len(ids("why?"))
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": counted}
    assert [it.tokens for it in parsers] == [[*ids("why?"), *ids("["), *ids("{}"), END]] * 2
    assert api.backend.ended == ["stop"] * 2, "the record keeps how the generation ended"


async def test_streamed_calls_and_reasoning(api: Api, parsers: list[FakeParser]) -> None:
    """Deltas as OpenAI streams them: id and name once, then pieces of the arguments."""
    assert parsers == []
    api.backend.script = [*(Output(tokens=ids(it)) for it in ("why?", "[", "{}")), Output(tokens=(END,), finish="stop")]
    told = await events(api)
    function = {"name": "look", "arguments": ""}
    assert [it["choices"][0]["delta"] for it in told] == [
        {"role": "assistant", "content": ""},
        {"reasoning": "why?", "reasoning_content": "why?"},
        {"tool_calls": [{"index": 0, "id": "call-1", "type": "function", "function": function}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert told[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_what_a_parser_held_back_comes_last(api: Api, parsers: list[FakeParser]) -> None:
    """And special tokens reach it, because it asked for them."""
    api.backend.script = [Output(tokens=(3, *ids("a"))), Output(tokens=(END,), finish="stop")]
    choice = (await asked(api))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("<|user|>a<9>", "stop")
    assert len(parsers) == 1

"""The prompt in the answer: `echo`, `prompt_logprobs`, `return_token_ids`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core.generation import Output, TokenLogprobs
from tests.api.conftest import Api
from tests.api.scripted import END, Step, ids, spoken

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PROMPT = (0, *ids("a log"))
ASKED = [{"role": "user", "content": "hi"}]


def prompt_logprob(token: int, logprob: float, rank: int = 0) -> TokenLogprobs:
    return TokenLogprobs(token, logprob, ((END, -0.125),), rank)


def with_prompt() -> list[Step]:
    """The prompt's logprobs come with the first token, as engines tell them."""
    prompt = (None, *(prompt_logprob(token, -2.0, rank=7) for token in PROMPT[1:]))
    (first,) = ids("x")
    return [
        Output(cached_tokens=0),
        Output(tokens=(first,), logprobs=(prompt_logprob(first, -1.0),), prompt_logprobs=prompt),
        Output(tokens=(END,), logprobs=(prompt_logprob(END, -0.5),), finish="stop"),
    ]


async def completion(api: Api, **fields: Any) -> dict[str, Any]:
    answer = await api.http.post(COMPLETIONS, json={"model": "tiny", "prompt": "a log"} | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("prompt", ["a log", ["a log"], list(PROMPT), [list(PROMPT)]])
async def test_the_prompt_is_said_first(api: Api, prompt: Any) -> None:
    """As it was sent, or what its token ids say; special tokens are not said."""
    api.backend.script = spoken(" of it", finish="length")
    answer = await completion(api, prompt=prompt, echo=True)
    assert answer["choices"][0]["text"] == "a log of it"
    assert answer["usage"]["completion_tokens"] == len(ids(" of it")) + 1


async def test_every_choice_of_every_prompt_is_echoed(api: Api) -> None:
    """Each with its own prompt, streamed too."""
    api.backend.script = spoken("!")
    body = {"prompt": ["one", "two"], "n": 2, "echo": True}
    answer = await completion(api, **body)
    assert [it["text"] for it in answer["choices"]] == ["one!", "one!", "two!", "two!"]
    streamed = await api.http.post(COMPLETIONS, json={"model": "tiny", "stream": True} | body)
    events = [json.loads(event.removeprefix("data: ")) for event in streamed.text.strip().split("\n\n")[:-1]]
    choices = [choice for event in events for choice in event["choices"]]
    texts = ["".join(it["text"] for it in choices if it["index"] == index) for index in range(4)]
    assert texts == ["one!", "one!", "two!", "two!"]


async def test_an_echo_with_logprobs(api: Api) -> None:
    """The prompt's tokens come first; nothing is known of the very first. Special tokens take no room in the text."""
    api.backend.script = with_prompt()
    logprobs = (await completion(api, echo=True, logprobs=1))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["<|start|>", "a", " l", "og", "x", "<|end|>"]
    assert logprobs["token_logprobs"] == [None, *[-2.0] * (len(PROMPT) - 1), -1.0, -0.5]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {"<|end|>": -0.125, "a": -2.0}
    assert logprobs["text_offset"] == [0, 0, 1, 3, 5, 6]
    sampling = api.backend.requests[0].sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == (1, 1)


async def test_an_echo_of_nothing_else(api: Api) -> None:
    """max_tokens=0: the engine must make a token, which is dropped and not counted."""
    api.backend.script = with_prompt()
    answer = await completion(api, echo=True, logprobs=1, max_tokens=0)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("a log", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, *[-2.0] * (len(PROMPT) - 1)]
    assert answer["usage"]["completion_tokens"] == 0
    assert api.backend.requests[0].sampling.max_tokens == 1
    api.backend.script = spoken("x", finish="length")
    assert (await completion(api, echo=True, max_tokens=0))["choices"][0]["text"] == "a log"


async def test_an_echo_of_the_best(api: Api) -> None:
    """The prompt's tokens do not count where the best are looked for."""
    for end, logprob in (("", -1.0), (".1", -0.5)):
        (token,) = ids("x" if end else "y")
        api.backend.scripts[end] = [
            Output(tokens=(token,), logprobs=(prompt_logprob(token, logprob),), finish="length")
        ]
    api.backend.scripts = dict(reversed(api.backend.scripts.items()))
    answer = await completion(api, echo=True, best_of=2)
    assert [(it["text"], it["logprobs"]) for it in answer["choices"]] == [("a logx", None)]


async def test_prompt_logprobs(api: Api) -> None:
    """vLLM's shape: token id to logprob, rank and text; in the choice for completions, beside them for chats."""
    api.backend.script = with_prompt()
    expected = [
        None,
        *(
            {
                str(token): {"logprob": -2.0, "rank": 7, "decoded_token": text},
                str(END): {"logprob": -0.125, "rank": 1, "decoded_token": "<|end|>"},
            }
            for token, text in zip(PROMPT[1:], ["a", " l", "og"], strict=True)
        ),
    ]
    choice = (await completion(api, prompt_logprobs=1))["choices"][0]
    assert (choice["text"], choice["logprobs"], choice["prompt_logprobs"]) == ("x", None, expected)
    assert api.backend.requests[0].sampling.prompt_logprobs == 1
    body = {"model": "tiny", "messages": ASKED, "prompt_logprobs": 1}
    assert (await api.http.post(CHAT, json=body)).json()["prompt_logprobs"] == expected


async def test_token_ids_are_returned(api: Api) -> None:
    """The answer's, the end token included, and the prompt's; without asking there are none."""
    api.backend.script = spoken("x", finish="stop")
    choice = (await completion(api, return_token_ids=True))["choices"][0]
    assert (choice["token_ids"], choice["prompt_token_ids"]) == ([*ids("x"), END], list(PROMPT))
    assert "token_ids" not in (await completion(api))["choices"][0]
    answer = (await api.http.post(CHAT, json={"model": "tiny", "messages": ASKED, "return_token_ids": True})).json()
    assert answer["choices"][0]["token_ids"] == [*ids("x"), END]
    assert answer["prompt_token_ids"] == list(ids("<|start|><|user|>hi<|end|><|assistant|>"))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_streamed_token_ids(api: Api, path: str) -> None:
    """The prompt's come once, the answer's with their text."""
    api.backend.script = spoken("x", "y")
    body = {"model": "tiny", "messages": ASKED, "prompt": "a log", "stream": True, "return_token_ids": True}
    streamed = await api.http.post(path, json=body)
    events = [json.loads(event.removeprefix("data: ")) for event in streamed.text.strip().split("\n\n")[:-1]]
    assert sum("prompt_token_ids" in event or "prompt_token_ids" in event["choices"][0] for event in events) == 1
    tokens = [event["choices"][0].get("token_ids", []) for event in events]
    assert [it for it in tokens if it] == [[*ids("x")], [*ids("y")], [END]]

"""Several answers to one request: `n`, several prompts, `best_of`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from core.generation import Output, TokenLogprobs
from core.models import GenerationFailed
from core.prompt import tokens_from_bytes
from tests.api.conftest import Api
from tests.api.scripted import END, Step, ids, spoken

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ASKED = [{"role": "user", "content": "hi"}]
ID = {"x-request-id": "many"}
OUTPUTS = 40


async def events(api: Api, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """A stream's events, `[DONE]` left out."""
    answer = await api.http.post(path, json={"model": "tiny", "stream": True} | body, headers=ID)
    *told, done = answer.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in told]


def texts_of(told: list[dict[str, Any]], count: int) -> list[str]:
    """What each choice of a streamed completion said."""
    choices = [choice for event in told for choice in event["choices"]]
    return ["".join(it["text"] for it in choices if it["index"] == index) for index in range(count)]


async def test_every_choice_is_a_generation_of_its_own(api: Api) -> None:
    """Ids are numbered from the second on, seeds count up, and usage has the prompt once and all answers."""
    api.backend.script = spoken("first")
    api.backend.scripts = {".1": spoken("and", " second"), ".2": spoken("third", finish="length")}
    answer = await api.http.post(CHAT, json={"model": "tiny", "messages": ASKED, "n": 3, "seed": 7}, headers=ID)
    body = answer.json()
    told = [(it["index"], it["message"]["content"], it["finish_reason"]) for it in body["choices"]]
    assert told == [(0, "first", "stop"), (1, "and second", "stop"), (2, "third", "length")]
    requests = sorted(api.backend.requests, key=lambda it: it.id)
    assert [(it.id, it.sampling.seed) for it in requests] == [("many", 7), ("many.1", 8), ("many.2", 9)]
    assert len({it.tokens for it in requests}) == 1
    said = len(ids("first")) + len(ids("and")) + len(ids(" second")) + len(ids("third")) + 3
    prompt = len(requests[0].tokens) // 4
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": said,
        "total_tokens": prompt + said,
        "prompt_tokens_details": {"cached_tokens": 7},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_seeds_stay_integers_of_64_bits(api: Api) -> None:
    """The largest one is followed by the smallest."""
    await api.http.post(COMPLETIONS, json={"model": "tiny", "prompt": "a", "n": 2, "seed": 2**63 - 1}, headers=ID)
    assert {it.sampling.seed for it in api.backend.requests} == {2**63 - 1, -(2**63)}


async def test_prompts_in_a_list_are_answered_in_order(api: Api) -> None:
    """Texts or lists of token ids: all answers to the first prompt, then those to the next; each prompt counts."""
    api.backend.scripts = {f".{place}": spoken(f"it is {place}") for place in range(1, 6)}
    for prompts in (["one", "two", "three"], [[0, *ids(text)] for text in ("one", "two", "three")]):
        api.backend.requests.clear()
        answer = await api.http.post(COMPLETIONS, json={"model": "tiny", "prompt": prompts, "n": 2}, headers=ID)
        body = answer.json()
        texts = ["hello", *(f"it is {place}" for place in range(1, 6))]
        assert [(it["index"], it["text"]) for it in body["choices"]] == list(enumerate(texts))
        sent = {it.id.removeprefix("many"): tokens_from_bytes(it.tokens) for it in api.backend.requests}
        assert sent[""] == sent[".1"] == [0, *ids("one")]
        assert sent[".2"] == sent[".3"] == [0, *ids("two")]
        assert sent[".5"] == [0, *ids("three")]
        assert body["usage"]["prompt_tokens"] == 3 + len(ids("one")) + len(ids("two")) + len(ids("three"))
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 21}


async def test_streams_of_several_choices(api: Api) -> None:
    """Each choice begins with its role, ends once, and its text is whole, whatever comes between."""
    api.backend.script = spoken("a", "b", "c")
    api.backend.scripts = {".1": spoken("x", "y", finish="length")}
    told = await events(api, CHAT, {"messages": ASKED, "n": 2, "stream_options": {"include_usage": True}})
    assert [event["choices"][0]["delta"] for event in told[:2]] == [{"role": "assistant", "content": ""}] * 2
    choices = [choice for event in told for choice in event["choices"]]
    for index, text, finish in ((0, "abc", "stop"), (1, "xy", "length")):
        own = [it for it in choices if it["index"] == index]
        assert "".join(it["delta"].get("content", "") for it in own) == text
        assert [it["finish_reason"] for it in own if it["finish_reason"]] == [finish]
        assert own[-1] == {"index": index, "delta": {}, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    assert told[-1]["choices"] == []
    assert told[-1]["usage"]["completion_tokens"] == 7
    assert all(event["usage"] is None for event in told[:-1])


async def test_a_slow_reader_of_many_choices_is_waited_for(api: Api) -> None:
    """More steps than may wait at once all arrive, in order within their choice."""
    pieces = [f"{place} " for place in range(OUTPUTS)]
    api.backend.script = spoken(*pieces)
    told = await events(api, COMPLETIONS, {"prompt": ["a", "b"], "n": 2})
    assert texts_of(told, 4) == ["".join(pieces)] * 4


@pytest.mark.parametrize("stream", [False, True])
async def test_one_failure_ends_all(api: Api, stream: bool) -> None:
    """The other generations are cancelled; before the first text it is an error with a status."""
    silent: list[Step] = [asyncio.Event()]
    api.backend.script = silent
    api.backend.scripts = {".2": [GenerationFailed("the worker broke off")]}
    body = {"model": "tiny", "prompt": "a", "n": 4, "stream": stream}
    answer = await api.http.post(COMPLETIONS, json=body, headers=ID)
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "the worker broke off")
    await api.backend.until_closed(4)
    assert api.backend.closed == 4


async def test_a_failure_after_the_first_text_ends_the_stream(api: Api) -> None:
    """The error is the last event, without `[DONE]`."""
    api.backend.script = [Output(tokens=ids("a")), asyncio.Event()]
    api.backend.scripts = {".1": [Output(tokens=ids("b")), GenerationFailed("the worker broke off")]}
    body = {"model": "tiny", "prompt": "a", "n": 2, "stream": True}
    told = (await api.http.post(COMPLETIONS, json=body, headers=ID)).text.strip().split("\n\n")
    assert json.loads(told[-1].removeprefix("data: "))["error"]["code"] == "generation_failed"
    await api.backend.until_closed(2)


async def test_hanging_up_stops_every_choice(api: Api) -> None:
    """No generation outlives its client."""
    api.backend.script = [Output(tokens=ids("a")), asyncio.Event()]
    body = json.dumps({"model": "tiny", "prompt": ["a", "b"], "n": 3, "stream": True}).encode()
    _, encoder = await asyncio.open_connection(*api.server.address)
    head = b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % (COMPLETIONS.encode(), len(body))
    encoder.write(head + body)
    await api.backend.until_asked(6)
    encoder.close()
    await api.backend.until_closed(6)
    await api.counted("tiny", "abort")


def likely(text: str, logprob: float) -> list[Step]:
    """An answer whose tokens all have this logprob."""
    tokens = ids(text)
    told = tuple(TokenLogprobs(token, logprob) for token in tokens)
    end = Output(tokens=(END,), logprobs=(TokenLogprobs(END, logprob),), finish="stop")
    return [Output(tokens=tokens, logprobs=told), end]


async def test_the_best_of_several_are_shown(api: Api) -> None:
    """By the mean of their tokens' logprobs, the best first; all of them count as used."""
    api.backend.script = likely("a long answer that is not likely", -0.75)
    api.backend.scripts = {".1": likely("worst", -2.0), ".2": likely("best", -0.25), ".3": likely("good", -0.5)}
    body = {"model": "tiny", "prompt": "a", "n": 2, "best_of": 4}
    answer = (await api.http.post(COMPLETIONS, json=body, headers=ID)).json()
    assert [(it["index"], it["text"], it["logprobs"]) for it in answer["choices"]] == [
        (0, "best", None),
        (1, "good", None),
    ]
    assert all(it.sampling.logprobs == 0 for it in api.backend.requests)
    texts = ("a long answer that is not likely", "worst", "best", "good")
    assert answer["usage"]["completion_tokens"] == sum(len(ids(text)) + 1 for text in texts)


async def test_the_best_are_chosen_for_each_prompt(api: Api) -> None:
    """As many of each prompt as are asked for."""
    logprobs = [-3.0, -1.0, -1.0, -2.0]
    api.backend.script = likely("0", logprobs[0])
    api.backend.scripts = {f".{place}": likely(str(place), logprobs[place]) for place in (1, 2, 3)}
    body = {"model": "tiny", "prompt": ["a", "b"], "best_of": 2}
    answer = (await api.http.post(COMPLETIONS, json=body, headers=ID)).json()
    assert [(it["index"], it["text"]) for it in answer["choices"]] == [(0, "1"), (1, "2")]

"""Logprobs in answers, as OpenAI's and vLLM's clients read them."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import pytest

from api.openai import generation
from api.tokenizer.detokenizer import TokenTexts
from core.generation import Output, TokenLogprobs
from tests.api.conftest import Api
from tests.api.scripted import END, Step, ids, tokenizer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ASKED = [{"role": "user", "content": "hi"}]
NO, YES = ids("no")[0], ids("a")[0]


def likely(*pieces: str, top: tuple[tuple[int, float], ...] = ()) -> list[Step]:
    """One output per piece; the n-th token has the logprob -n/4."""
    made: list[Step] = []
    place = 0
    for tokens in (*map(ids, pieces), (END,)):
        told = []
        for token in tokens:
            place += 1
            told.append(TokenLogprobs(token, -place / 4, top))
        made.append(Output(tokens=tokens, logprobs=tuple(told), finish="stop" if tokens == (END,) else None))
    return made


def written(token: int) -> str:
    return tokenizer().decode([token], skip_special_tokens=False)


async def chunks(api: Api, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The only choice of each event."""
    answer = await api.http.post(path, json={"model": "tiny", "stream": True} | body)
    *told, _ = answer.text.strip().split("\n\n")
    return [json.loads(event.removeprefix("data: "))["choices"][0] for event in told]


async def test_chat_logprobs(api: Api) -> None:
    """Each token with its bytes, and so many of the likeliest as were asked for."""
    api.backend.script = likely("a", top=((NO, -0.125), (YES, -0.25), (END, -math.inf)))
    body = {"model": "tiny", "messages": ASKED, "logprobs": True, "top_logprobs": 3}
    choice = (await api.http.post(CHAT, json=body)).json()["choices"][0]
    assert api.backend.requests[0].sampling.logprobs == 3
    top = [
        {"token": written(NO), "logprob": -0.125, "bytes": list(written(NO).encode())},
        {"token": "a", "logprob": -0.25, "bytes": [97]},
        {"token": "<|end|>", "logprob": -9999.0, "bytes": list(b"<|end|>")},
    ]
    assert choice["logprobs"] == {
        "content": [
            {"token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": top},
            {"token": "<|end|>", "logprob": -0.5, "bytes": list(b"<|end|>"), "top_logprobs": top},
        ],
        "refusal": None,
    }


async def test_chat_logprobs_without_the_likeliest(api: Api) -> None:
    """None of the others are asked of the engine, nor shown; without logprobs there are none at all."""
    api.backend.script = likely("a", top=((NO, -1.0),))
    body = {"model": "tiny", "messages": ASKED, "logprobs": True, "top_logprobs": None}
    choice = (await api.http.post(CHAT, json=body)).json()["choices"][0]
    assert [it["top_logprobs"] for it in choice["logprobs"]["content"]] == [[], []]
    assert api.backend.requests[0].sampling.logprobs == 0
    choice = (await api.http.post(CHAT, json={"model": "tiny", "messages": ASKED, "logprobs": False})).json()
    assert choice["choices"][0]["logprobs"] is None
    assert api.backend.requests[1].sampling.logprobs == -1


async def test_streamed_chat_logprobs(api: Api) -> None:
    """They come with their text; the end token's come by themselves, before the end."""
    api.backend.script = likely("a", " log")
    told = await chunks(api, CHAT, {"messages": ASKED, "logprobs": True})
    assert told[0]["logprobs"] is None
    texts = [it["delta"].get("content") for it in told]
    assert texts == ["", "a", " log", "", None]
    named = ["".join(entry["token"] for entry in it["logprobs"]["content"]) for it in told[1:-1]]
    assert named == ["a", " log", "<|end|>"]
    assert told[-1]["finish_reason"] == "stop"


async def test_logprobs_are_held_back_with_their_text(api: Api) -> None:
    """What may become a stop string keeps its tokens too; a character in several tokens brings all of them."""
    clown = ids("🤡")
    api.backend.script = [
        *(
            Output(tokens=(token,), logprobs=(TokenLogprobs(token, -1.0),))
            for token in (*ids("xST"), *ids("Z"), *clown)
        ),
        *(Output(tokens=(token,), logprobs=(TokenLogprobs(token, -1.0),)) for token in (*ids("STOP"), *ids("never"))),
    ]
    told = await chunks(api, CHAT, {"messages": ASKED, "logprobs": True, "stop": "STOP"})
    spoken = [(it["delta"]["content"], [entry["token"] for entry in it["logprobs"]["content"]]) for it in told[1:-1]]
    assert spoken[:2] == [("x", ["x"]), ("STZ", [written(token) for token in ids("STZ")])]
    assert spoken[2] == ("🤡", [f"\\x{byte:02x}" for byte in "🤡".encode()][: len(clown)])
    assert "".join(text for text, _ in spoken) == "xSTZ🤡"
    stopped = [written(token) for token in ids("STOP")]
    assert spoken[3:] == [("", stopped)], "as many as are counted in usage, and none behind the stop string"
    assert (told[-1]["finish_reason"], told[-1]["stop_reason"]) == ("stop", "STOP")


async def test_bytes_of_a_part_of_a_character_are_exact(api: Api) -> None:
    """Its text cannot be; all bytes together are the text."""
    tokens = ids("é🤡")
    api.backend.script = [
        Output(tokens=tokens, logprobs=tuple(TokenLogprobs(token, -1.0) for token in tokens), finish="length")
    ]
    body: dict[str, Any] = {"model": "tiny", "messages": ASKED, "logprobs": True}
    content = (await api.http.post(CHAT, json=body)).json()["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == "é🤡"
    answer = await api.http.post(COMPLETIONS, json={"model": "tiny", "prompt": "a", "logprobs": 0})
    told = answer.json()["choices"][0]["logprobs"]
    assert told["tokens"][-1].startswith("bytes:\\x")
    assert "".join(name.removeprefix("bytes:") for name in told["tokens"] if "bytes" in name).count("\\x") >= 4


async def test_completion_logprobs(api: Api) -> None:
    """Four lists; the chosen token is always among the likeliest, and offsets are places in the text."""
    api.backend.script = likely("a log", top=((NO, -0.125), (END, -3.0)))
    body = {"model": "tiny", "prompt": "a", "logprobs": 1}
    choice = (await api.http.post(COMPLETIONS, json=body)).json()["choices"][0]
    tokens = [written(token) for token in (*ids("a log"), END)]
    offsets = [len("".join(tokens[:place])) for place in range(len(tokens))]
    assert choice["logprobs"] == {
        "tokens": tokens,
        "token_logprobs": [-(place + 1) / 4 for place in range(len(tokens))],
        "top_logprobs": [{written(NO): -0.125, token: -(place + 1) / 4} for place, token in enumerate(tokens)],
        "text_offset": offsets,
    }
    assert api.backend.requests[0].sampling.logprobs == 1


async def test_streamed_offsets_go_on(api: Api) -> None:
    """From chunk to chunk, whole characters counted once; together they are what is told in one piece."""
    pieces = ("a", "🤡", "é", " log")
    whole = await api_logprobs(api, pieces, stream=False)
    assert await api_logprobs(api, pieces, stream=True) == whole
    assert whole["text_offset"][-1] == len("".join(pieces))
    assert whole["text_offset"][:2] == [0, 1]


async def api_logprobs(api: Api, pieces: tuple[str, ...], *, stream: bool) -> dict[str, list[Any]]:
    api.backend.script = likely(*pieces)
    body = {"prompt": "a", "logprobs": 0}
    if not stream:
        told = (await api.http.post(COMPLETIONS, json={"model": "tiny"} | body)).json()["choices"]
    else:
        told = await chunks(api, COMPLETIONS, body)
    logprobs = [it["logprobs"] for it in told if it["logprobs"]]
    return {name: [entry for piece in logprobs for entry in piece[name]] for name in logprobs[0]}


async def test_tokens_are_named_by_ids(api: Api) -> None:
    """vLLM's way to tell tokens apart that have no text."""
    api.backend.script = likely("a", top=((NO, -1.0),))
    body: dict[str, Any] = {"model": "tiny", "return_tokens_as_token_ids": True}
    answer = await api.http.post(CHAT, json=body | {"messages": ASKED, "logprobs": True, "top_logprobs": 1})
    first = answer.json()["choices"][0]["logprobs"]["content"][0]
    assert (first["token"], first["bytes"]) == (f"token_id:{YES}", [97])
    assert first["top_logprobs"][0]["token"] == f"token_id:{NO}"
    answer = await api.http.post(COMPLETIONS, json=body | {"prompt": "a", "logprobs": 1})
    told = answer.json()["choices"][0]["logprobs"]
    assert told["tokens"] == [f"token_id:{YES}", f"token_id:{END}"]
    assert told["top_logprobs"][0] == {f"token_id:{NO}": -1.0, f"token_id:{YES}": -0.25}
    assert told["text_offset"] == [0, 1]


async def test_logprobs_of_several_choices(api: Api) -> None:
    """Each choice has its own, streamed offsets included."""
    api.backend.script = likely("a", " log")
    api.backend.scripts = {".1": likely("its", " cache")}
    body = {"prompt": "a", "logprobs": 0, "n": 2}
    told = await chunks(api, COMPLETIONS, body)
    for index, pieces in ((0, ("a", " log")), (1, ("its", " cache"))):
        own = [it["logprobs"] for it in told if it["index"] == index and it["logprobs"]]
        tokens = [token for piece in own for token in piece["tokens"]]
        offsets = [offset for piece in own for offset in piece["text_offset"]]
        assert "".join(tokens) == "".join(pieces) + "<|end|>"
        assert offsets == [len("".join(tokens[:place])) for place in range(len(tokens))]


@pytest.mark.parametrize("stream", [False, True])
async def test_many_logprobs_are_written_beside_the_loop(
    api: Api, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is the same; a few are written at once."""
    threads: set[bool] = set()
    raw = TokenTexts.raw

    def noted(self: TokenTexts, token: int) -> bytes:
        threads.add(threading.current_thread() is threading.main_thread())
        return raw(self, token)

    monkeypatch.setattr(TokenTexts, "raw", noted)
    inline = await api_logprobs(api, ("a", " log"), stream=stream)
    assert threads == {True}
    monkeypatch.setattr(generation, "LOGPROBS_INLINE_MAX", 0)
    threads.clear()
    assert await api_logprobs(api, ("a", " log"), stream=stream) == inline
    assert threads == {False}


async def test_openais_client_reads_them(api: Api) -> None:
    """Its own types hold all of it, streamed and not, of several choices too."""
    api.backend.script = likely("a", " log", top=((NO, -0.125),))
    asked: Any = {"model": "tiny", "messages": ASKED, "logprobs": True, "top_logprobs": 1, "n": 2}
    answer = await api.client.chat.completions.create(**asked)
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert [entry.token for entry in choice.logprobs.content] == ["a", " l", "og", "<|end|>"]
        assert choice.logprobs.content[0].top_logprobs[0].logprob == -0.125
    said = {0: "", 1: ""}
    stream = await api.client.chat.completions.create(**asked, stream=True)
    async for chunk in stream:
        for piece in chunk.choices:
            said[piece.index] += "".join(entry.token for entry in (piece.logprobs and piece.logprobs.content) or ())
    assert said == {0: "a log<|end|>", 1: "a log<|end|>"}
    text = await api.client.completions.create(model="tiny", prompt=["a", "b"], logprobs=1)
    assert [choice.logprobs and choice.logprobs.text_offset for choice in text.choices] == [[0, 1, 3, 5]] * 2

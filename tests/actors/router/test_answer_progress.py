"""What a client has of an answer, and what another worker is asked for behind it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors.prompt_cache.digest_store import DigestStore
from actors.prompt_cache.hash_columns import HashColumns
from actors.router.answer_progress import AnswerProgress
from core.generation import GenerateRequest, Guided, Output, TokenLogprobs
from core.models import GenerationFailed
from core.prompt import tokens_from_bytes
from tests.actors.world import request

CONTEXT = 4096
COLUMNS = HashColumns(DigestStore(), 0)


def test_the_rest_is_asked_for_behind_what_was_told() -> None:
    """Prompt and answer so far are the next prompt; what was told counts against both bounds of the answer."""
    asked = request([1, 2, 3], max_tokens=10)
    asked = msgspec.structs.replace(asked, sampling=msgspec.structs.replace(asked.sampling, min_tokens=3))
    progress = AnswerProgress(asked, CONTEXT, 4, COLUMNS)
    assert progress.payload() is asked
    progress.accept(Output(tokens=(7, 8)))
    payload = progress.payload()
    assert tokens_from_bytes(payload.tokens) == [1, 2, 3, 7, 8]
    assert (payload.sampling.max_tokens, payload.sampling.min_tokens) == (8, 1)
    progress.accept(Output(tokens=(9, 9)))
    assert progress.payload().sampling.min_tokens == 0
    assert not progress.complete
    progress.accept(Output(tokens=(1,) * 6))
    assert progress.complete


def test_what_came_from_a_cache_is_told_once() -> None:
    """The second worker finds the answer so far in no cache of the client's concern."""
    progress = AnswerProgress(request([1]), CONTEXT, 4, COLUMNS)
    assert progress.accept(Output(tokens=(2,), cached_tokens=16)) == Output(tokens=(2,), cached_tokens=16)
    progress.payload()
    again = progress.accept(Output(tokens=(3,), cached_tokens=32))
    assert again is not None
    assert (again.tokens, again.cached_tokens) == ((3,), None)


@pytest.mark.parametrize(
    ("sampling", "compares"),
    [
        ({}, False),
        ({"temperature": 1.0}, False),
        ({"seed": 3, "temperature": 0.0}, False),
        ({"repetition_penalty": 1.3}, False),  # counts the prompt as well
        ({"logit_bias": ((7, 1.0),), "allowed_token_ids": (7, 8)}, False),
        ({"seed": 3, "temperature": 0.5}, True),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"bad_words": ("no",)}, True),
        ({"guided": Guided(json_object=True)}, True),
    ],
)
def test_only_what_its_tokens_say_goes_on_behind_them(sampling: dict[str, Any], compares: bool) -> None:
    """What counts the answer's own tokens, or how many were drawn, is made again from its start."""
    progress = AnswerProgress(with_sampling(request([1], max_tokens=9), **sampling), CONTEXT, 4, COLUMNS)
    whole = progress.payload()
    assert progress.accept(Output(tokens=(5, 6), cached_tokens=16)) == Output(tokens=(5, 6), cached_tokens=16)
    payload = progress.payload()
    if compares:
        assert payload == whole
        assert not progress.repeating
        assert progress.accept(Output(tokens=(5,), cached_tokens=0)) is None
        assert progress.repeating
        assert progress.accept(Output(tokens=(6, 7), finish="stop")) == Output(tokens=(7,), finish="stop")
    else:
        assert tokens_from_bytes(payload.tokens) == [1, 5, 6]
        assert progress.accept(Output(tokens=(7,), finish="stop")) == Output(tokens=(7,), finish="stop")
    assert progress.tokens == [5, 6, 7]
    assert not progress.repeating


@pytest.mark.parametrize("again", [[(5, 7)], [(5,), (7, 8)], [(4,)]])
def test_a_token_that_differs_is_never_told(again: list[tuple[int, ...]]) -> None:
    """Nothing behind it is, either."""
    progress = AnswerProgress(with_sampling(request([1], max_tokens=9), presence_penalty=0.5), CONTEXT, 4, COLUMNS)
    progress.accept(Output(tokens=(5, 6)))
    progress.payload()
    with pytest.raises(GenerationFailed, match=r"the answer cannot be continued: .*\(the [12]th one\)"):
        for tokens in again:
            assert progress.accept(Output(tokens=tokens)) is None
    assert progress.tokens == [5, 6]


def test_an_answer_that_ends_sooner_than_it_was_told_differs() -> None:
    """One that ends just where it was told has its end."""
    progress = AnswerProgress(with_sampling(request([1], max_tokens=9), presence_penalty=0.5), CONTEXT, 4, COLUMNS)
    progress.accept(Output(tokens=(5, 6)))
    progress.payload()
    with pytest.raises(GenerationFailed, match="it ended after 1 of 2"):
        progress.accept(Output(tokens=(5,), finish="stop"))
    progress.payload()
    assert progress.accept(Output(tokens=(5, 6), finish="stop")) == Output(finish="stop")


def test_logprobs_of_dropped_tokens_are_dropped() -> None:
    """Each token that is told has its own, and the prompt's are told once and not asked for again."""
    of = {token: TokenLogprobs(token, -token / 10) for token in range(10)}
    progress = AnswerProgress(
        with_sampling(request([1], max_tokens=9), seed=3, temperature=1.0, prompt_logprobs=0), CONTEXT, 4, COLUMNS
    )
    first = Output(tokens=(5,), logprobs=(of[5],), prompt_logprobs=(None,))
    assert progress.accept(first) == first
    assert progress.payload().sampling.prompt_logprobs == -1
    again = Output(tokens=(5, 6), logprobs=(of[5], of[6]), prompt_logprobs=(None,), cached_tokens=8)
    assert progress.accept(again) == Output(tokens=(6,), logprobs=(of[6],))


def test_what_could_not_be_made_again_has_a_seed_of_ours() -> None:
    """The same one for every worker; whoever needs none gets none, because it costs engines something."""
    progress = AnswerProgress(
        with_sampling(request([1]), temperature=1.0, guided=Guided(json_object=True)), CONTEXT, 4, COLUMNS
    )
    seed = progress.payload().sampling.seed
    assert seed is not None
    progress.accept(Output(tokens=(5,)))
    assert progress.payload().sampling.seed == seed
    for sampling in ({"temperature": 1.0}, {"temperature": 0.0, "guided": Guided(json_object=True)}):
        assert (
            AnswerProgress(with_sampling(request([1]), **sampling), CONTEXT, 4, COLUMNS).payload().sampling.seed is None
        )
    theirs = with_sampling(request([1]), temperature=1.0, presence_penalty=1.0, seed=7)
    assert AnswerProgress(theirs, CONTEXT, 4, COLUMNS).payload().sampling.seed == 7


def test_an_answer_is_complete_at_the_end_of_the_context() -> None:
    """No worker can be asked for more; an answer that ends there has only lost its end."""
    progress = AnswerProgress(request([1, 2, 3], max_tokens=100), 6, 4, COLUMNS)
    progress.accept(Output(tokens=(5, 6)))
    assert not progress.complete
    progress.accept(Output(tokens=(7,)))
    assert progress.complete


def test_time_that_is_left_goes_with_the_request() -> None:
    """Whole or in part."""
    progress = AnswerProgress(request([1], deadline_ms=900), CONTEXT, 4, COLUMNS)
    assert progress.payload(900).deadline_ms == 900
    progress.accept(Output(tokens=(5,)))
    assert progress.payload(300).deadline_ms == 300


def with_sampling(asked: GenerateRequest, **sampling: Any) -> GenerateRequest:
    return msgspec.structs.replace(asked, sampling=msgspec.structs.replace(asked.sampling, **sampling))

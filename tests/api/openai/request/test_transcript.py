"""One generation's text and tokens, however its outputs are cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from api.openai.request.choice import Choice, PendingTokens, Transcript
from api.parsers.reasoning import ChainedParser, ThinkParser
from api.tokenizer.detokenizer import ByteLevelDetokenizer, StopStrings, TokenBytes, TokenTexts
from core.generation import Output, TokenLogprobs
from tests.actors.world import request
from tests.api.scripted import END, ids, tokenizer

WORDS = ["a", "ST", "OP", "STOP", " log", "é", "🤡", "\n", "S", "T"]
texts = st.lists(st.sampled_from(WORDS), max_size=8).map("".join)
stops = st.lists(st.sampled_from(["STOP", "TS", "\n", "é", "🤡a"]), max_size=3)
broken = st.lists(st.integers(0, 60), max_size=3)
"""Places of tokens that are left out: then characters are incomplete."""


def detokenizer(*, skip: bool = True) -> ByteLevelDetokenizer:
    return ByteLevelDetokenizer(TokenBytes(TokenTexts(tokenizer()), skip_special_tokens=skip))


class Told(NamedTuple):
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish: str | None
    stop_reason: str | int | None
    completion_tokens: int


def transcribe(
    tokens: list[int],
    cuts: list[int],
    given: list[str],
    *,
    included: bool,
    min_tokens: int,
    finish: str,
    keeps_tokens: bool = True,
) -> Told:
    """What a transcript says of these tokens, cut before these places."""
    pending_tokens = PendingTokens() if keeps_tokens else None
    under_test = Transcript(
        detokenizer(),
        StopStrings(given, included=included),
        {END},
        min_tokens,
        reported_ends={END},
        pending_tokens=pending_tokens,
    )
    text = ""
    left: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    bounds = sorted({0, *[cut % (len(tokens) + 1) for cut in cuts], len(tokens)})
    for start, end in zip(bounds, [*bounds[1:], None], strict=True):
        piece = tuple(tokens[start:end])
        known = tuple(TokenLogprobs(token, float(-start - place)) for place, token in enumerate(piece))
        text += under_test.push(Output(tokens=piece, logprobs=known, finish=finish if end is None else None))
        new = under_test.release_tokens()
        left, logprobs = left + new[0], logprobs + new[1]
        assert under_test.finish is not None or spells(left, text, included), "tokens never run ahead of their text"
        if under_test.finish is not None:
            break
    return Told(text, left, logprobs, under_test.finish, under_test.stop_reason, under_test.completion_tokens)


def spells(tokens: tuple[int, ...], text: str, included: bool) -> bool:
    """All of the text so far is that of these tokens and of no more, but for a character that is incomplete."""
    said = tokenizer().decode(list(tokens), skip_special_tokens=True)
    return text.startswith(said.rstrip("\ufffd")) or included


@given(texts, broken, stops, st.lists(st.integers(0, 60), max_size=6), st.booleans(), st.integers(0, 4))
@example("aSTOPa", [], ["STOP"], [2], False, 0)
@example("a🤡STOPa", [2], ["STOP"], [2], True, 3)
@example("aééST", [2], ["STOP"], [], False, 0)
def test_how_outputs_are_cut_changes_nothing(
    text: str, without: list[int], given: list[str], cuts: list[int], included: bool, min_tokens: int
) -> None:
    """Text, tokens, logprobs and the end are those of one output with everything in it, and of single tokens."""
    tokens = [token for place, token in enumerate(ids(text)) if place not in without] + [END]
    for finish in ("stop", "length"):
        options: Any = {"included": included, "min_tokens": min_tokens, "finish": finish}
        whole = transcribe(tokens, [], given, **options)
        assert transcribe(tokens, cuts, given, **options) == whole
        assert transcribe(tokens, list(range(len(tokens))), given, **options) == whole
        assert len(whole.tokens) == len(whole.logprobs) == whole.completion_tokens
        without_ledger = transcribe(tokens, cuts, given, **options, keeps_tokens=False)
        assert without_ledger == whole._replace(tokens=(), logprobs=()), "what came behind a stop is not counted"


@given(texts, stops)
def test_a_stop_string_is_part_of_the_answer_if_asked_for(text: str, given: list[str]) -> None:
    """The text ends with it; otherwise it ends before it."""
    tokens = [*ids(text), END]
    without = transcribe(tokens, [], given, included=False, min_tokens=0, finish="length")
    included = transcribe(tokens, [], given, included=True, min_tokens=0, finish="length")
    stop = str(without.stop_reason) if without.stop_reason else ""
    assert included.text == without.text + stop
    assert included._replace(text="") == without._replace(text="")
    assert bool(stop) == any(it in text for it in given)


def test_the_end_token_is_told_if_it_was_asked_for() -> None:
    """As the reason; its text only with `include_stop_str_in_output` and special tokens shown."""
    for included, skip, text in ((False, False, "a"), (True, True, "a"), (True, False, "a<|end|>")):
        under_test = Transcript(detokenizer(skip=skip), StopStrings([], included=included), {END}, reported_ends={END})
        assert under_test.push(Output(tokens=(*ids("a"), END), finish="stop")) == text
        assert (under_test.finish, under_test.stop_reason) == ("stop", END)
    under_test = Transcript(detokenizer(), StopStrings([]), {END})
    under_test.push(Output(tokens=(END,), finish="stop"))
    assert under_test.stop_reason is None


@given(st.lists(st.sampled_from(["hm ", "so", "</think>", "Hi.", " log"]), max_size=8), st.lists(st.integers(0, 60)))
@example(["hm ", "so", "</think>", "Hi.", " log"], [])
def test_tokens_of_reasoning_are_counted_however_they_come(words: list[str], cuts: list[int]) -> None:
    """An output that ends the reasoning may hold tokens of the answer, too; reasoning and text are the same as well."""
    tokens = [token for word in words for token in ids(word)]

    def read(cuts: list[int]) -> tuple[str, str, int]:
        parser = ChainedParser(ThinkParser(), None, include_reasoning=True)
        transcript = Transcript(detokenizer(), StopStrings([]), {END}, pending_tokens=PendingTokens())
        choice = Choice(0, 0, request([1]), transcript, parser)
        bounds = sorted({0, *[cut % (len(tokens) + 1) for cut in cuts], len(tokens)})
        pieces = [tuple(tokens[start:end]) for start, end in pairwise(bounds)]
        deltas = [choice.push(Output(tokens=piece)).delta for piece in pieces]
        deltas.append(choice.push(Output(tokens=(END,), finish="stop")).delta)
        reasoning, text = "".join([it.reasoning for it in deltas]), "".join([it.text for it in deltas])
        return reasoning, text, choice.reasoning_tokens

    found = read(cuts)
    assert found == read(list(range(len(tokens))))
    assert found[2] <= sum(len(ids(word)) for word in words)

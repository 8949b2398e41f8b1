"""Text to tokens and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from api.openai.request.choice import Transcript
from api.parsers.loaded_models import LoadedModels
from api.tokenizer.detokenizer import HOLD_TOKENS_MAX, ByteLevelDetokenizer, Detokenizer, StopStrings
from api.tokenizer.model_tokenizer import ModelTokenizer, TextTooLong
from core.errors import Corrupt
from core.generation import Output
from core.models import ModelCard
from core.prompt import tokens_from_bytes
from tests.api.scripted import END, card, files, ids, tokenizer

TINY = ModelTokenizer("tiny", files())


def detokenizer() -> Detokenizer | ByteLevelDetokenizer:
    return TINY.detokenizer()


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=40), st.integers(1, 5))
def test_pieces_add_up_to_the_text(text: str, step: int) -> None:
    """Tokens pushed in any steps give back the text, and no piece but the last ends within a character."""
    under_test, tokens = detokenizer(), ids(text)
    pieces = [under_test.push(tokens[start : start + step]) for start in range(0, len(tokens), step)]
    assert "".join(pieces) + under_test.flush() == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_split_over_tokens_comes_whole() -> None:
    """A clown has four bytes, here four tokens: nothing leaves before the last."""
    tokens = ids("🤡")
    assert len(tokens) == 4
    under_test = detokenizer()
    assert [under_test.push([token]) for token in tokens] == ["", "", "", "🤡"]


def test_bytes_that_never_become_text_are_not_held_for_ever() -> None:
    """After so many tokens it is no character any more."""
    under_test, broken = Detokenizer(tokenizer()), ids("🤡")[1]
    pieces = [under_test.push([broken]) for _ in range(HOLD_TOKENS_MAX)]
    assert pieces[:-1] == [""] * (HOLD_TOKENS_MAX - 1)
    assert pieces[-1] == "\ufffd" * HOLD_TOKENS_MAX


def test_a_first_space_is_kept_inside_a_text() -> None:
    """Where a token's text depends on those before it, words stay apart, also after tokens without text."""
    words = {"<unk>": 0, "▁a": 1, "▁b": 2, "<0xC3>": 3, "<0xA9>": 4, "</s>": 5}
    made = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>"))
    made.add_special_tokens(["</s>"])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    under_test = Detokenizer(made)
    assert [under_test.push([token]) for token in (1, 2, 3, 4, 5, 1)] == ["a", " b", "", "é", "", " a"]


def test_the_files_say_how_an_answer_ends() -> None:
    """End tokens come from both files; a prompt's special tokens are added only where asked for."""
    model = TINY
    assert model.eos_ids == (0, END)
    assert tokens_from_bytes(model.encode("log", 9, add_special_tokens=True)) == [0, *ids("log")]
    assert tokens_from_bytes(model.encode("log", 9, add_special_tokens=False)) == list(ids("log"))
    assert model.vocabulary == tokenizer().get_vocab_size()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200), st.integers(1, 60))
def test_a_text_that_fits_is_tokenized_whole(text: str, tokens_max: int) -> None:
    """What has at most so many tokens comes whole, whatever its tokens are like."""
    whole = list(ids(text))
    got = tokens_from_bytes(TINY.encode(text, tokens_max, add_special_tokens=False))
    assert got == whole if len(whole) <= tokens_max else len(got) > tokens_max


def test_a_text_that_never_fits_is_not_tokenized_to_its_end() -> None:
    """Megabytes for a small context: the answer is known after some thousand characters."""
    got = tokens_from_bytes(TINY.encode("é b " * 3000, 1000, add_special_tokens=False))
    assert 1000 < len(got) < 6000


def test_a_text_that_cannot_fit_is_not_tokenized_at_all() -> None:
    """Not even if all of it were the longest token: its length tells."""
    longest = max(map(len, tokenizer().get_vocab()))
    with pytest.raises(TextTooLong) as failure:
        TINY.encode("a" * longest * 1001, 1000, add_special_tokens=False)
    assert failure.value.tokens_min == 1001


async def test_a_model_is_loaded_once_per_set_of_files() -> None:
    """Equal files give the very same model, whether or not they are the same object."""
    models = LoadedModels()
    first = await models.of(card("tiny"))
    assert await models.of(card("tiny")) is first
    copied = ModelCard(name="tiny", engine="x", context_max=1, created_s=0, workers=0, files={**files()})
    assert await models.of(copied) is first


@pytest.mark.parametrize("broken", [{}, {"tokenizer.json": b"{"}, {**files(), "tokenizer_config.json": b"]"}])
def test_files_that_cannot_be_used_are_said_so(broken: dict[str, bytes]) -> None:
    """The error names the model and the file."""
    with pytest.raises(Corrupt, match=r"model 'tiny'.*tokenizer|tokenizer.*model 'tiny'"):
        ModelTokenizer("tiny", broken)


def test_the_end_token_is_counted_but_not_said() -> None:
    """Usage counts what was generated; the text ends before the token that ended it, which may have text."""
    transcript = Transcript(detokenizer(), StopStrings([]), {*ids("e"), END})
    text = transcript.push(Output(tokens=ids("log"))) + transcript.push(Output(tokens=ids("e"), finish="stop"))
    assert (text, transcript.finish, transcript.completion_tokens) == ("log", "stop", len(ids("log")) + 1)


def test_a_stop_string_waits_for_min_tokens() -> None:
    """Before so many tokens it is text like any other."""
    transcript = Transcript(detokenizer(), StopStrings(["ZZ"]), (), min_tokens=3)
    assert [transcript.push(Output(tokens=ids("Z"))) for _ in range(4)] == ["Z", "Z", "", ""]
    assert (transcript.finish, transcript.completion_tokens) == ("stop", 4)

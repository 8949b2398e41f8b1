"""The encoder against the library: the same tokens, whatever the tokenizer is like and whatever was seen before."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from actors.prompt_cache.digest_store import DigestStore
from api.tokenizer import word_cache
from api.tokenizer.text_encoder import NEW_WORDS_MAX, WORDS_PIECE_CHARS, TextEncoder
from api.tokenizer.word_cache import (
    PIECE_BYTES,
    WORD_BYTES_MAX,
    WORDS_MAX,
    WordCaches,
    WordTooLong,
    every_word,
    pieces,
    word_caches_of,
)
from core.prompt import tokens_to_bytes

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    "The quick brown fox doesn't jump over 12345 lazy dogs; we've seen it, they'll see it.",
    "def f(x):\n    return {'a': [1, 2, 3], \"b\": x ** 2}\n\n\nclass C:\n\tpass  # done",
    "Grüße aus Köln, naïve café, 東京, Привет! 🤡",
] * 20
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|im", "</s>"]


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def byte_level(pre_tokenizer: pre_tokenizers.PreTokenizer, normalizer: Any = None) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        made.normalizer = normalizer
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    made.add_special_tokens(SPECIAL)
    start = f"{SPECIAL[0]} $A {SPECIAL[3]}"
    ids = [(name, made.token_to_id(name)) for name in (SPECIAL[0], SPECIAL[3])]
    made.post_processor = processors.TemplateProcessing(single=start, special_tokens=ids)
    return made


def sentence_pieces(scheme: str) -> Tokenizer:
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    made.add_special_tokens(SPECIAL)
    return made


def stripping() -> Tokenizer:
    made = byte_level(split(LLAMA3))
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    return made


def with_added(*added: AddedToken, normalizer: Any = None) -> Tokenizer:
    made = byte_level(split(LLAMA3), normalizer)
    made.add_tokens(list(added))
    return made


def word_pieces() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[UNK]"], show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    made.add_special_tokens(SPECIAL)
    return made


def unigram() -> Tokenizer:
    """As Llama 2's file has it: blanks are written by the normalizer, before each segment too."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    made.add_special_tokens(SPECIAL)
    return made


TOKENIZERS = {
    "gpt2": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "prefix space": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "llama3": byte_level(split(LLAMA3)),
    "qwen": byte_level(split(LLAMA3), normalizers.NFC()),
    "o200k": byte_level(split(O200K)),
    "lower case": byte_level(split(LLAMA3), normalizers.Lowercase()),
    "metaspace, first": sentence_pieces("first"),
    "metaspace, always": sentence_pieces("always"),
    "strips": stripping(),
    "strips behind": with_added(AddedToken("<sep>", rstrip=True, normalized=False)),
    "single word": with_added(AddedToken("sep", single_word=True, normalized=False)),
    "added words": with_added(AddedToken("silver fox"), AddedToken("<tool>", normalized=False)),
    "added words, NFC": with_added(AddedToken("café"), normalizer=normalizers.NFC()),
    "word pieces": word_pieces(),
    "unigram": unigram(),
}
WAYS = {
    "gpt2": "segments and words",
    "prefix space": "segments",
    "llama3": "segments and words",
    "qwen": "segments and words",
    "o200k": "segments and words",
    "lower case": "segments",
    "metaspace, first": "the library alone",
    "metaspace, always": "segments",
    "strips": "the library alone",
    "strips behind": "the library alone",
    "single word": "the library alone",
    "added words": "segments and words",
    "added words, NFC": "the library alone",
    "word pieces": "segments",
    "unigram": "segments",
}
ENCODERS = {name: TextEncoder(made, json.loads(made.to_str())) for name, made in TOKENIZERS.items()}
WORDS: dict[str, WordCaches] = {
    name: found
    for name, made in TOKENIZERS.items()
    if (found := word_caches_of(made, json.loads(made.to_str()))) is not None
}
PIECES = st.one_of(
    st.text(max_size=30),
    st.text(st.characters(max_codepoint=127), max_size=30),
    st.sampled_from(
        [
            *SPECIAL,
            *CORPUS[:3],
            "silver fox",
            "sep",
            "<sep>",
            "'S",
            "'ll ",
            "   ",
            "\r\n\r\n",
            "\n ",
            "\x1c",
            "\x0b",
            "İ",
            "\ufb01",
        ]
    ),
)


def library(name: str, text: str, *, add_special_tokens: bool) -> bytes:
    return tokens_to_bytes(TOKENIZERS[name].encode(text, add_special_tokens=add_special_tokens).ids)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_way_is_the_one_that_is_exact(name: str) -> None:
    """Read from the file, and tried."""
    assert f"by {WAYS[name]}," in repr(ENCODERS[name])


@pytest.mark.parametrize("name", TOKENIZERS)
@given(parts=st.lists(PIECES, max_size=8), add_special_tokens=st.booleans())
@example(parts=["<|im_start|>", "user\nhello world", "<|im_end|>", "\n"], add_special_tokens=True)
@example(parts=[], add_special_tokens=True)
def test_tokens_are_the_librarys(name: str, parts: list[str], add_special_tokens: bool) -> None:
    """Twice: the second time out of what was kept."""
    text = "".join(parts)
    expected = library(name, text, add_special_tokens=add_special_tokens)
    for _ in range(2):
        assert ENCODERS[name].encode(text, 10**6, add_special_tokens=add_special_tokens) == expected


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way != "the library alone"])
@settings(deadline=None, max_examples=50)
@given(before=st.lists(PIECES, max_size=5), border=st.sampled_from(SPECIAL[:2]), behind=st.lists(PIECES, max_size=5))
@example(before=["caf"], border="<|im_end|>", behind=["\u0301 e", "<|im_start|>"])
@example(before=["a "], border="<|im_end|>", behind=["  b"])
def test_tokens_up_to_a_special_token_do_not_depend_on_the_rest(
    name: str, before: list[str], border: str, behind: list[str]
) -> None:
    """By the library alone, in each tokenizer whose segments are kept; and the rest does not depend on them."""
    first, rest = "".join(before) + border, "".join(behind)
    parts = [library(name, text, add_special_tokens=False) for text in (first, rest)]
    assert library(name, first + rest, add_special_tokens=False) == b"".join(parts)


@pytest.mark.parametrize(
    ("name", "first", "rest"),
    [
        ("strips", "a  ", "<mask>"),
        ("strips behind", "a<sep>", "  b"),
        ("single word", "<|im_end|>sep", "arate"),
        ("metaspace, first", "a<|im_end|>", "b"),
    ],
)
def test_a_tokenizer_whose_tokens_depend_on_their_surroundings_keeps_none(name: str, first: str, rest: str) -> None:
    """The library alone tokenizes each text as a whole, because parts would have other tokens."""
    parts = [library(name, text, add_special_tokens=False) for text in (first, rest)]
    assert library(name, first + rest, add_special_tokens=False) != b"".join(parts)
    cache = DigestStore()
    encoder = TextEncoder(TOKENIZERS[name], json.loads(TOKENIZERS[name].to_str()), cache)
    assert encoder.encode(first + rest * 100, 10**6, add_special_tokens=False) == library(
        name, first + rest * 100, add_special_tokens=False
    )
    assert cache.size == 0


@pytest.mark.parametrize("name", ["qwen", "lower case", "metaspace, always", "word pieces", "unigram"])
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_turns_of_a_talk_have_the_librarys_tokens(name: str, data: st.DataObject) -> None:
    """Each turn sends a talk before it, cut anywhere, and something new; little of them is kept."""
    made = TOKENIZERS[name]
    encoder = TextEncoder(made, json.loads(made.to_str()), DigestStore(3000))
    talks = [""]
    for turn in range(6):
        before = data.draw(st.sampled_from(talks))
        news = [*data.draw(st.lists(PIECES, max_size=3)), "<|im_end|>", f"{CORPUS[turn % 3]}{turn} "]
        text = before[: data.draw(st.integers(0, len(before)))] + "".join(news)
        assert encoder.encode(text, 10**6, add_special_tokens=False) == library(name, text, add_special_tokens=False)
        talks.append(text)


@pytest.mark.parametrize("name", ["gpt2", "qwen", "added words", "prefix space"])
@pytest.mark.parametrize("chars", [2 * WORDS_PIECE_CHARS, 2 * WORDS_PIECE_CHARS + 1, 3 * PIECE_BYTES])
@pytest.mark.parametrize("line", [CORPUS[1], "".join(CORPUS[:3]), "a" * 17_000 + " b"])
def test_a_segment_of_any_length_has_the_librarys_tokens(name: str, chars: int, line: str) -> None:
    """By words, by pieces of words, by the library where a piece is not ASCII or has a long word, or by it alone."""
    text = (line * (chars // len(line) + 1))[:chars]
    assert ENCODERS[name].encode(text, 10**6, add_special_tokens=False) == library(name, text, add_special_tokens=False)


def test_after_a_piece_of_new_words_the_library_goes_on() -> None:
    """New words are as fast there; the tokens are the same, and few of the words are kept."""
    made = TOKENIZERS["qwen"]
    encoder = TextEncoder(made, json.loads(made.to_str()))
    text = " ".join(f"w{chr(97 + number % 26) * (number % 7)}x{number * 7919 % 99991}" for number in range(20_000))
    expected = library("qwen", text, add_special_tokens=False)
    assert encoder.encode(text, 10**6, add_special_tokens=False) == expected
    assert encoder._words is not None
    assert len(encoder._words.of("")) < WORDS_PIECE_CHARS < len(set(every_word(text)))
    known = "".join(CORPUS) * 4
    assert encoder.encode(known, 10**6, add_special_tokens=False) == library("qwen", known, add_special_tokens=False)
    assert len(every_word(known)) > NEW_WORDS_MAX


BOUNDED = ("gpt2", "llama3", "qwen", "o200k")
"""Patterns whose words are known to end at boundaries."""
MARKS = st.one_of(
    st.text(
        st.sampled_from(" \t\n\r'sSl1290aZé你好한\uff0c。、,.;:!?()[]{}/-_²①\u0301\u00a0\x1c\x85Ж€🤡"), max_size=30
    ),
    st.text(max_size=20),
)


@pytest.mark.parametrize("name", BOUNDED)
@given(parts=st.lists(MARKS, max_size=6))
@example(parts=["it's 5 o'clock", "!\n/x\n1", "a\t\tb", "x  \n \n y", "abc123def", "你好\uff0c世界。", "'S", "I'LL,go"])
def test_a_text_cut_at_every_boundary_has_the_tokens_of_the_whole(name: str, parts: list[str]) -> None:
    """In any text."""
    text = "".join(parts)
    words = every_word(text)
    assert "".join(words) == text
    cut = [token for word in words for token in TOKENIZERS[name].encode(word, add_special_tokens=False).ids]
    assert cut == TOKENIZERS[name].encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_long_text_has_the_librarys_tokens(name: str) -> None:
    """In pieces where that can be, or as a whole; more than it has are never asked for."""
    text = "".join(f"{CORPUS[at % 3]}\n{at}" for at in range(3000))
    assert len(text) > 5 * PIECE_BYTES
    expected = library(name, text, add_special_tokens=True)
    assert ENCODERS[name].encode(text, len(expected) // 4, add_special_tokens=True) == expected


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("tokens_max", [0, 1, 100, 8_000])
def test_of_a_text_with_too_many_tokens_a_beginning_is_enough(name: str, tokens_max: int) -> None:
    """More than was asked for, and never much more; it is not taken for the whole afterwards."""
    text = f"{CORPUS[0]} {CORPUS[2]} {name} {tokens_max} " * max(300, tokens_max // 7)
    whole = library(name, text, add_special_tokens=False)
    found = ENCODERS[name].encode(text, tokens_max, add_special_tokens=False)
    assert tokens_max < len(found) // 4 < tokens_max * 8 + 2000
    assert ENCODERS[name].encode(text, 10**6, add_special_tokens=False) == whole


def test_between_two_pieces_a_request_may_end() -> None:
    """What is called there may raise; nothing of the text is kept then."""
    calls = 0

    class Over(Exception):
        pass

    def proceed() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Over

    text = "a word that ends " * 20_000
    with pytest.raises(Over):
        ENCODERS["qwen"].encode(text, 10**6, add_special_tokens=False, proceed=proceed)
    assert calls == 3
    assert ENCODERS["qwen"].encode(text, 10**6, add_special_tokens=False) == library(
        "qwen", text, add_special_tokens=False
    )


@pytest.mark.parametrize("letter", [" ", "a", "\n", "é", "你", "🤡", "7", "!"])
def test_a_word_may_have_so_many_bytes_and_no_more(letter: str) -> None:
    """Neither at the beginning, nor behind other words; a text of so many is tokenized, one of more is refused."""
    longest = letter * (WORD_BYTES_MAX // len(letter.encode()))
    assert "".join(pieces("a b " + longest, 1000)) == "a b " + longest
    for text in (longest * 2, "a b " * PIECE_BYTES + longest * 2, longest * 2 + " a b" * PIECE_BYTES):
        with pytest.raises(WordTooLong):
            list(pieces(text))


@pytest.mark.parametrize("letter", ["a", "é", "你", "🤡"])
def test_no_piece_takes_the_library_long(letter: str) -> None:
    """Whatever alphabet a text is of: its bytes are what the library's time goes by, not its characters."""
    some = letter * (WORD_BYTES_MAX // len(letter.encode()))
    text = " ".join([some, letter * 900, some, *[letter * 7] * 30_000, some])
    assert max(len(piece.encode()) for piece in pieces(text)) <= WORD_BYTES_MAX + PIECE_BYTES * 4 // 3 + 4


@given(text=st.text(st.sampled_from("ab 1,\n"), max_size=300), piece_chars=st.integers(1, 40))
def test_pieces_are_the_text(text: str, piece_chars: int) -> None:
    """None is empty, and none but the last ends before it is as long as was asked for."""
    found = list(pieces(text, piece_chars))
    assert "".join(found) == text
    assert all(len(piece) >= piece_chars for piece in found[:-1])
    assert all(found) or not text


def test_how_many_tokens_a_text_has_at_least() -> None:
    """Told from its length by the longest token; never more than it has."""
    encoder, longest = ENCODERS["qwen"], max(map(len, TOKENIZERS["qwen"].get_vocab()))
    assert encoder.tokens_min("a" * longest * 7) == 7
    assert ENCODERS["metaspace, first"].tokens_min("a" * 10_000) == 0
    for text in (*CORPUS, "\u03b1\u0313\u0300\u0345" * 50, "<|im_start|>" * 30):
        assert encoder.tokens_min(text) <= len(library("qwen", text, add_special_tokens=False)) // 4


def test_words_that_differ_from_the_library_are_not_trusted() -> None:
    """Whatever the file says: here the pattern in it is not the one that the library uses."""
    made = byte_level(split(LLAMA3))
    description = json.loads(made.to_str())
    description["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    assert "by segments," in repr(TextEncoder(made, description))


ASCII = st.text(st.one_of(st.sampled_from(" '.aZ9s\n\t\r/\x1c"), st.characters(max_codepoint=127)), max_size=12)


@pytest.mark.parametrize("name", BOUNDED)
@given(spaced=st.lists(ASCII, max_size=12))
@example(spaced=["it's", "x.\n\n", "y", "\n"])
@example(spaced=["", "a", "b"])
@example(spaced=["a", "b\n"])
def test_words_have_the_tokens_of_the_library_wherever_white_space_stands(name: str, spaced: list[str]) -> None:
    """Where the pattern leaves nothing of the text out. Special tokens are taken out of a text before its words."""
    text = " ".join(spaced)
    assume(not any(special in text for special in SPECIAL))
    assert WORDS[name].of("").tokens(text) in {None, library(name, text, add_special_tokens=False)}


def test_only_a_known_pattern_has_word_boundaries() -> None:
    """Under another one a word may go on behind a space: a long text is not cut there."""
    assert all(WORDS[name].has_boundaries for name in BOUNDED)
    made = byte_level(split(r"\p{L}+ \p{L}+|" + LLAMA3))
    other = word_caches_of(made, json.loads(made.to_str()))
    assert other is not None
    assert not other.has_boundaries
    assert other.of("").tokens("good day to you") == tokens_to_bytes(
        made.encode("good day to you", add_special_tokens=False).ids
    )


def test_words_are_forgotten_before_they_are_too_many() -> None:
    """Those of the tenant with most, and found again; those of another tenant stay."""
    made = TOKENIZERS["gpt2"]
    words = word_caches_of(made, json.loads(made.to_str()))
    assert words is not None
    first = words.of("a").tokens("word0")
    words.of("b").tokens("word0 word1")
    for number in range(WORDS_MAX + 10):
        words.of("a").tokens(f"a {number:x}g b")
        assert words._count == len(words.of("a")) + len(words.of("b")) <= WORDS_MAX
    assert len(words.of("a")) < WORDS_MAX // 2
    assert set(words.of("b")) == {"word", "0", " word", "1"}
    assert words.of("a").tokens("word0") == first


def test_tenants_with_words_of_their_own_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway may invent names."""
    monkeypatch.setattr(word_cache, "TENANTS_MAX", 8)
    made = TOKENIZERS["gpt2"]
    words = word_caches_of(made, json.loads(made.to_str()))
    assert words is not None
    for number in range(100):
        words.of(f"tenant {number}").tokens(f"word{number}")
        assert len(words._caches) <= 8
        assert words._count == sum(map(len, words._caches.values()))


def test_words_of_tenants_keep_their_count_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full cache that many threads fill: no call fails, and the bound holds."""
    monkeypatch.setattr(word_cache, "WORDS_MAX", 50)
    made = TOKENIZERS["gpt2"]
    words = word_caches_of(made, json.loads(made.to_str()))
    assert words is not None

    def fill(seed: int) -> None:
        for number in range(400):
            words.of(str((seed + number) % 5)).tokens(f" w{number % 97} v{seed}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fill, range(8)))
    assert words._count == sum(map(len, words._caches.values())) <= 50

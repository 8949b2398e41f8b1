"""What threads share: many of them, switched every microsecond, read and fill the caches of one tokenizer."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from actors.prompt_cache.digest_store import DigestStore
from api.openai.request.prompts import tokenize_prompts
from api.openai.types.request_types import ChatMessage, ChatRequest
from api.tokenizer.model_tokenizer import ModelTokenizer
from api.tokenizer.segment_cache import SegmentCache
from core.prompt import tokens_from_bytes, tokens_to_bytes
from tests.api.scripted import files, ids

THREADS = 8
ROUNDS = 400


@pytest.fixture(autouse=True)
def switched_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_short_segments_keep_their_bound() -> None:
    """Threads fill the table of short texts, which are forgotten together: no call fails."""
    segments = SegmentCache(DigestStore())
    scope = segments.scope(b"tokenizer", "")

    def fill(seed: int) -> None:
        for number in range(ROUNDS * 10):
            text = f"{seed}.{number}"
            segments.put(text, text.encode(), scope, b"")
            assert segments.find(text, scope)[0] in {None, text.encode()}

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(fill, range(THREADS)))
    assert len(segments._short) <= 1024


def test_one_tokenizer_gives_every_thread_its_own_tokens() -> None:
    """Long and short texts, words and segments, kept and forgotten meanwhile: the library's tokens each time."""
    shared = ModelTokenizer("tiny", files(), DigestStore(60_000))
    texts = [f"<|user|>{f'word{number} ' * 40} e{number} <|end|>" + "é log " * (number * 30) for number in range(40)]
    expected = [tokens_to_bytes(ids(text)) for text in texts]

    def encode(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(ROUNDS // 4):
            at = chance.randrange(len(texts))
            assert shared.encode(texts[at], 10**6, add_special_tokens=False) == expected[at]

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(encode, range(THREADS)))


def test_one_template_and_one_detokenizer_give_every_thread_its_own() -> None:
    """Chats are rendered, tokenized and become text again, as each does alone."""
    shared = ModelTokenizer("tiny", files())
    chats = [
        ChatRequest(
            model="tiny",
            messages=[ChatMessage(role="user", content=f"turn {turn} of {chat} é " * 9) for turn in range(chat + 1)],
        )
        for chat in range(12)
    ]
    alone = ModelTokenizer("tiny", files())
    expected = [tokenize_prompts(chat, alone, 10**6)[0].tokens for chat in chats]
    texts = [alone.texts.decode(tokens_from_bytes(tokens), skip_special_tokens=False) for tokens in expected]

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(ROUNDS // 8):
            at = chance.randrange(len(chats))
            (prompt,) = tokenize_prompts(chats[at], shared, 10**6)
            assert prompt.tokens == expected[at]
            detokenizer = shared.detokenizer(skip_special_tokens=False)
            assert detokenizer.push(tokens_from_bytes(prompt.tokens)) + detokenizer.flush() == texts[at]

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))

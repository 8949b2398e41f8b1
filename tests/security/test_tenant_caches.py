"""Attacks: a tenant reads the prompts of others through caches, with settings that say nothing of tenants."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import httpx
import pytest

from api.tokenizer.text_encoder import TextEncoder
from api.tokenizer.word_cache import WordCache
from tests.api.guarded import COMPLETIONS, Guarded, made
from tests.e2e.deployment import up

ENGINE = {"block_size": 16, "capacity_blocks": 65_536, "prefill_us_per_token": 1, "max_seqs": 32}
BLOCK = 16
CODE = 265
DIGITS = 1000
AT_ONCE = 16


def prompt_with(code: int) -> list[int]:
    """A known text around a code of three digits, which stands in a block of its own."""
    digits = [100 + int(digit) for digit in f"{code:03}"]
    return [20] * BLOCK + digits + [30] * (BLOCK - len(digits)) + [40] * (2 * BLOCK + 1)


async def cached_tokens(http: httpx.AsyncClient, key: str, code: int) -> int:
    body = {"model": "tiny", "prompt": prompt_with(code), "max_tokens": 1}
    answer = await http.post(COMPLETIONS, json=body, headers={"authorization": f"Bearer {key}"}, timeout=60)
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


async def find_code(http: httpx.AsyncClient, key: str) -> tuple[int | None, int]:
    """The code for which more than the text before it is cached, and the guesses that were sent."""
    for start in range(0, DIGITS, AT_ONCE):
        codes = range(start, min(DIGITS, start + AT_ONCE))
        counts = await asyncio.gather(*(cached_tokens(http, key, code) for code in codes))
        for code, cached in zip(codes, counts, strict=True):
            if cached > BLOCK:
                return code, codes.stop
    return None, DIGITS


async def test_no_tenant_finds_a_code_in_the_prompt_of_another(tmp_path: Path) -> None:
    """`cached_tokens` is no oracle: a guess hits only blocks of its own tenant, also of one that came later."""
    keys = tmp_path / "keys"
    victim, attacker = made(keys, "victim"), made(keys, "attacker")
    group = {"name": "decode", "model": "tiny", "count": 1, "engine": "simulated", "engine_args": ENGINE}
    file = tmp_path / "one.yaml"
    file.write_text(json.dumps({"version": 1, "workers": [group]}))
    async with (
        up(tmp_path / "data", "-f", str(file), "--keys", str(keys)) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        assert await cached_tokens(http, victim, CODE) == 0
        assert await cached_tokens(http, victim, CODE) == len(prompt_with(CODE)) - 1
        assert await find_code(http, attacker) == (None, DIGITS)
        later = made(keys, "later")
        await asyncio.sleep(1.1)  # front ends look at the file each second
        assert await cached_tokens(http, later, CODE) == 0
    assert "Note: each tenant has a cache of its own" in (tmp_path / "data.out").read_text()


@pytest.mark.parametrize("one_tenant", [True, False])
@pytest.mark.parametrize("isolate", [None, True, False])
async def test_keys_isolate_unless_that_is_switched_off(tmp_path: Path, isolate: bool | None, one_tenant: bool) -> None:
    """With keys of any number of tenants, so that no salt changes when a second tenant comes."""
    keys = tmp_path / "keys"
    key = made(keys, "a")
    if not one_tenant:
        made(keys, "b", "--gateway")
    guarded = Guarded(keys, isolate_tenants=isolate)
    async with guarded.served() as http:
        assert await guarded.ask(http, key) == 200
    (request,) = guarded.backend.requests
    assert request.cache_salt == (None if isolate is False else "a:")


async def test_a_gateway_key_has_the_cache_of_the_tenant_that_it_speaks_for(tmp_path: Path) -> None:
    """As if that tenant had sent the request itself."""
    keys = tmp_path / "keys"
    key, guarded = made(keys, "gate", "--gateway"), Guarded(keys)
    async with guarded.served() as http:
        for tenant in ("x", "y"):
            assert await guarded.ask(http, key, **{"x-contrail-tenant": tenant}) == 200
    assert [request.cache_salt for request in guarded.backend.requests] == ["x:", "y:"]


SECRET = " ".join(f"merger{number}codename" for number in range(8))
BODIES = {
    COMPLETIONS: {"model": "tiny", "prompt": SECRET},
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": SECRET}]},
    "/v1/messages": {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": SECRET}]},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": [{"role": "user", "content": SECRET}]},
    "/v1/embeddings": {"model": "tiny", "input": SECRET},
    "/tokenize": {"model": "tiny", "prompt": SECRET},
}


class Tokenized:
    """Counts the texts and the words that no cache had."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.missed = Counter[str]()
        tokens, missing = TextEncoder._tokens, WordCache.__missing__

        def on_text(encoder: TextEncoder, text: str, *more: object) -> bytes:
            self.missed["texts"] += SECRET in text
            return tokens(encoder, text, *more)  # type: ignore[arg-type]

        def on_word(cache: WordCache, word: str) -> bytes:
            self.missed["words"] += "codename" in word or "merger" in word
            return missing(cache, word)

        patch.setattr(TextEncoder, "_tokens", on_text)
        patch.setattr(WordCache, "__missing__", on_word)

    def take(self) -> Counter[str]:
        found, self.missed = self.missed, Counter[str]()
        return found


@pytest.mark.parametrize("path", BODIES)
async def test_no_tenant_finds_tokenized_texts_of_another(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long text that one tenant sent costs the next tenant all of its tokenization; its own text does not."""
    keys = tmp_path / "keys"
    victim, attacker = made(keys, "victim"), made(keys, "attacker")
    guarded, tokenized = Guarded(keys), Tokenized(monkeypatch)
    async with guarded.served() as http:
        for key in (victim, attacker):
            for again in (False, True):
                await http.post(path, json=BODIES[path], headers={"authorization": f"Bearer {key}"})
                missed = tokenized.take()
                assert bool(missed["texts"]) == bool(missed["words"]) == (not again), (key == attacker, again, missed)


async def test_tenants_that_share_a_cache_share_tokenized_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where isolation is switched off, the second tenant is as fast as the first."""
    keys = tmp_path / "keys"
    tenants = made(keys, "a"), made(keys, "b")
    guarded, tokenized = Guarded(keys, isolate_tenants=False), Tokenized(monkeypatch)
    async with guarded.served() as http:
        for key in tenants:
            await http.post("/tokenize", json=BODIES["/tokenize"], headers={"authorization": f"Bearer {key}"})
    assert tokenized.missed["texts"] == 1

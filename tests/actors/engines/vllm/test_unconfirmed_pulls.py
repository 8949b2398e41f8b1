"""Which tokens may be stored while pulls are unconfirmed."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from actors.engines.vllm.unconfirmed_pulls import UnconfirmedPulls

HASH = 32


def chain(prompt: str) -> list[bytes]:
    """Names of blocks, a letter of the prompt each; a name stands for all before it."""
    return [prompt[:depth].encode() for depth in range(1, len(prompt) + 1)]


def test_the_request_itself_stores_what_the_device_had() -> None:
    """Nothing before it is known what that is, nor behind a part of a block."""
    pulls = UnconfirmedPulls(HASH)
    pulls.begin("pull", "a")
    assert pulls.limit("a", chain("abcd")) == 0
    assert pulls.limit("b", chain("abcd")) is None
    pulls.place("a", 2 * HASH, chain("abcd"))
    assert pulls.limit("a", chain("abcdefgh")) == 2 * HASH
    pulls.place("a", 4 * HASH, chain("abcd"))
    assert pulls.limit("a", chain("abcd")) == pulls.limit("a", chain("abcdefgh")) == 4 * HASH
    pulls.end("pull")
    assert pulls.limit("a", chain("abcd")) is None
    assert not pulls


def test_others_store_up_to_the_first_pulled_block() -> None:
    pulls = UnconfirmedPulls(HASH)
    pulls.begin("pull", "a")
    pulls.place("a", 2 * HASH, chain("abcd"))
    assert pulls.limit("b", chain("abcxyz")) == 2 * HASH
    assert pulls.limit("b", chain("abx")) is None
    assert pulls.limit("b", chain("ab")) is None
    pulls.place("other", HASH, chain("abx"))
    assert pulls.limit("b", chain("abx")) is None, "it pulls nothing"


def test_the_least_of_several_counts_until_each_has_ended() -> None:
    pulls = UnconfirmedPulls(HASH)
    for request, depth in (("a", 3), ("b", 1)):
        pulls.begin(f"pull of {request}", request)
        pulls.place(request, depth * HASH, chain("abcd"))
    assert [pulls.limit(each, chain("abcde")) for each in "abc"] == [HASH] * 3
    pulls.end("pull of b")
    pulls.end("pull of b")
    assert [pulls.limit(each, chain("abcde")) for each in "abc"] == [3 * HASH] * 3
    assert len(pulls) == 1
    pulls.clear()
    assert [pulls.limit(each, chain("abcde")) for each in "abc"] == [None] * 3


def test_the_same_blocks_may_be_pulled_by_two() -> None:
    """The word that they are right ends both pulls, and neither before."""
    pulls = UnconfirmedPulls(HASH)
    for request, depth in (("a", 1), ("b", 3)):
        pulls.begin("pull", request)
        pulls.place(request, depth * HASH, chain("abcd"))
    assert [pulls.limit(each, chain("abcde")) for each in "abc"] == [HASH] * 3
    pulls.end("pull")
    assert [pulls.limit(each, chain("abcde")) for each in "abc"] == [None] * 3
    assert not pulls


def test_beyond_the_bound_nothing_is_stored() -> None:
    pulls = UnconfirmedPulls(HASH, pulls_max=2)
    for number in range(4):
        pulls.begin(f"{number}", f"request {number}")
        pulls.place(f"request {number}", 0, chain(f"{number}"))
    assert len(pulls) == 4
    assert pulls.limit("x", chain("abc")) == 0
    pulls.end("0")
    pulls.end("2")
    assert pulls.limit("x", chain("abc")) == 0
    pulls.end("3")
    assert pulls.limit("x", chain("abc")) is None
    assert pulls.limit("x", chain("1bc")) == 0


def test_a_model_with_parts_of_blocks_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own, with no remedy here
        from actors.engines.vllm.offloading_connector import _unconfirmed_pulls  # noqa: PLC0415

    whole: Any = SimpleNamespace(supports_partial_tail=False, tokens_per_hash=HASH)
    assert len(_unconfirmed_pulls(whole)) == 0
    whole.supports_partial_tail = True
    with pytest.raises(ValueError, match="this model's KV tiers do not go together with remote prefill"):
        _unconfirmed_pulls(whole)

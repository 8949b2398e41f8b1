"""What an output is, beside its tokens."""

from __future__ import annotations

import msgspec
import pytest

from core.generation import Output, PrefillReport, TokenLogprobs, is_plain_token

PREFILL = PrefillReport(
    remote=False, reason="short", uncached_tokens=1, queued=0, workers=0, min_tokens=1, queue_max=1
)  # fmt: skip
BESIDE = {
    "finish": "stop",
    "cached_tokens": 0,
    "prefill": PREFILL,
    "engine_us": (0, 0),
    "logprobs": (TokenLogprobs(1, -0.5),),
    "prompt_logprobs": (None,),
    "embedding": b"\0\0\0\0",
}


@pytest.mark.parametrize("field", [field for field in Output.__struct_fields__ if field != "tokens"])
def test_a_plain_token_has_nothing_beside_it(field: str) -> None:
    """Whatever else an output says, now or one day, makes it more than that."""
    plain = Output(tokens=(1,))
    assert is_plain_token(plain)
    assert not is_plain_token(msgspec.structs.replace(plain, **{field: BESIDE[field]}))


def test_a_plain_token_is_one() -> None:
    """Neither none nor two."""
    assert not is_plain_token(Output())
    assert not is_plain_token(Output(tokens=(1, 2)))

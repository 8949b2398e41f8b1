"""How much may be told of a prompt: it comes in one piece, and is made, sent and read on event loops."""

from __future__ import annotations

from core.errors import CallerError
from core.generation import GenerateRequest
from core.prompt import TOKEN_BYTES

LOGPROBS_MAX = 131_072
"""Of one prompt, all its tokens' together: reading so many takes 20 to 60 ms of an event loop."""


def refuse_too_many(request: GenerateRequest) -> None:
    """Returns if what is asked of the prompt's logprobs can be told, else raises CallerError."""
    each = request.sampling.prompt_logprobs + 1
    tokens = len(request.tokens) // TOKEN_BYTES
    if each * tokens > LOGPROBS_MAX:
        raise CallerError(
            f"{each} logprobs for each of the prompt's {tokens} tokens are more than {LOGPROBS_MAX}: "
            "ask for fewer, or send a shorter prompt"
        )

"""Texts that a simulated engine answers with instead of made-up tokens: so clients can be tried without a model."""

from __future__ import annotations

from pathlib import Path

import xxhash
from tokenizers import Tokenizer

from actors.engines.simulated_settings import SimulatedSettings
from core.errors import CallerError
from core.prompt import TOKEN_BYTES, tokens_to_bytes

_REPLY_SEED = 0x82


class Replies:
    """The settings' replies as tokens, each with its end. CallerError if the tokenizer cannot be read; reads a file."""

    def __init__(self, settings: SimulatedSettings) -> None:
        file = Path(settings.model_path, "tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises a bare one, whatever it is
            raise CallerError(f"replies need a tokenizer, and {file} cannot be read: {error}") from error
        self._replies = [
            (*tokenizer.encode(reply, add_special_tokens=False).ids, settings.eos_token) for reply in settings.replies
        ]

    def to(self, prompt: bytes) -> tuple[int, ...]:
        """The rest of the reply to this prompt, by a hash of it.

        A prompt that ends with the beginning of the reply to what stands before it is gone on with: so an answer that
        was broken off elsewhere becomes the same. O(prompt) for each place where that could be.
        """
        for reply in self._replies:
            for length in range(len(reply) - 1, 0, -1):
                begun = tokens_to_bytes(reply[:length])
                if prompt.endswith(begun) and self._chosen(prompt[: -length * TOKEN_BYTES]) == reply:
                    return reply[length:]
        return self._chosen(prompt)

    def _chosen(self, prompt: bytes) -> tuple[int, ...]:
        return self._replies[xxhash.xxh3_64_intdigest(prompt, _REPLY_SEED) % len(self._replies)]

"""Texts that a simulated engine answers with instead of made-up tokens: so clients can be tried without a model."""

from __future__ import annotations

from pathlib import Path

import xxhash
from tokenizers import Tokenizer

from actors.engines.simulated.simulated_settings import CannedReply, SimulatedSettings
from core.errors import CallerError
from core.prompt import TOKEN_BYTES, tokens_from_bytes, tokens_to_bytes

_REPLY_SEED = 0x82


class CannedReplies:
    """The settings' replies as tokens, each with its end. CallerError if the tokenizer cannot be read; reads a file."""

    def __init__(self, settings: SimulatedSettings) -> None:
        file = Path(settings.model_path, "tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises a bare one for every error
            raise CallerError(f"replies need a tokenizer, and {file} cannot be read: {error}") from error
        self._tokenizer = tokenizer
        self._plain: list[tuple[int, ...]] = []
        self._scripted: list[tuple[str, tuple[int, ...]]] = []
        """Each with the text of the prompt that it answers."""
        for reply in settings.replies:
            text = reply.say if isinstance(reply, CannedReply) else reply
            tokens = (*tokenizer.encode(text, add_special_tokens=False).ids, settings.eos_token)
            if isinstance(reply, CannedReply):
                self._scripted.append((reply.when, tokens))
            else:
                self._plain.append(tokens)

    def to(self, prompt: bytes) -> tuple[int, ...]:
        """The rest of the reply to this prompt; empty if there is none for it.

        A prompt that ends with the beginning of the reply to what stands before it is gone on with: so an answer that
        was broken off elsewhere becomes the same. O(prompt) for each place where that could be.
        """
        for reply in (*self._plain, *(tokens for _, tokens in self._scripted)):
            for length in range(len(reply) - 1, 0, -1):
                begun = tokens_to_bytes(reply[:length])
                if prompt.endswith(begun) and self._chosen(prompt[: -length * TOKEN_BYTES]) == reply:
                    return reply[length:]
        return self._chosen(prompt)

    def _chosen(self, prompt: bytes) -> tuple[int, ...]:
        return self._by_text(prompt) or self._by_hash(prompt)

    def _by_text(self, prompt: bytes) -> tuple[int, ...]:
        if not self._scripted:
            return ()
        text = self._tokenizer.decode(tokens_from_bytes(prompt), skip_special_tokens=False)
        ends = [(at + len(when), tokens) for when, tokens in self._scripted if (at := text.rfind(when)) >= 0]
        return max(ends, key=lambda end: end[0], default=(0, ()))[1]

    def _by_hash(self, prompt: bytes) -> tuple[int, ...]:
        if not self._plain:
            return ()
        return self._plain[xxhash.xxh3_64_intdigest(prompt, _REPLY_SEED) % len(self._plain)]

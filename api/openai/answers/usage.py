"""What a request used, in tokens."""

from __future__ import annotations

from typing import NamedTuple


class Usage(NamedTuple):
    """Tokens of one request: each prompt once, the answers of all its choices together."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0

    def as_json(self) -> bytes:
        """OpenAI's `usage`; from a template, because every answer has one."""
        prompt, completion, cached, reasoning = self
        return (
            b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},'
            b'"completion_tokens_details":{"reasoning_tokens":%d}}'
        ) % (prompt, completion, prompt + completion, cached, reasoning)

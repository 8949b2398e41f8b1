"""A model's tokenizer, chat template and end tokens, from the files that its workers give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders

from actors.prompt_cache.digest_store import DigestStore
from api.tokenizer.chat_template import ChatTemplate
from api.tokenizer.detokenizer import ByteLevelDetokenizer, Detokenizer, TokenBytes, TokenTexts
from api.tokenizer.text_encoder import TextEncoder
from core.errors import Corrupt

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Special tokens that templates may name."""


class TextTooLong(ValueError):
    """The text has at least `tokens_min` tokens, which are too many."""

    def __init__(self, tokens_min: int) -> None:
        super().__init__(f"at least {tokens_min} tokens")
        self.tokens_min = tokens_min


class ModelTokenizer:
    """Text to tokens and back for one model. Corrupt if the files cannot be used."""

    def __init__(self, model: str, files: Mapping[str, bytes], texts: DigestStore | None = None) -> None:
        """Without a store of tokenized texts, the model has one of its own."""
        self.library = _tokenizer(model, files)
        """As the library has it."""
        description = msgspec.json.decode(files["tokenizer.json"], type=dict[str, Any])
        self._encoder = TextEncoder(self.library, description, texts)
        config = _json(model, files, "tokenizer_config.json")
        special = {name: text for name in SPECIAL_TOKENS if (text := _token_text(config.get(name))) is not None}
        source = _template_source(files, config)
        tools = _template_source(files, config, "tool_use")
        self.chat_template = None if source is None else ChatTemplate(source, special, tools)
        """None if the model has none: it completes, but does not chat."""
        self.eos_ids = self._eos_ids(special.get("eos_token"), _json(model, files, "generation_config.json"))
        """Tokens that end an answer, sorted."""
        self.eos_id = self.library.token_to_id(special["eos_token"]) if "eos_token" in special else None
        """The one that the tokenizer itself names."""
        self.vocabulary = 1 + max(self.library.get_vocab(with_added_tokens=True).values())
        """One more than the highest token id."""
        self.texts = TokenTexts(self.library)
        """Single tokens as text and as bytes."""
        # byte-level tokens stand for their bytes wherever they are; all others depend on what is before them
        byte_level = isinstance(self.library.decoder, decoders.ByteLevel)
        self._bytes = [TokenBytes(self.texts, skip_special_tokens=skip) for skip in (False, True)] if byte_level else []
        self._model = model

    def __repr__(self) -> str:
        return f"<ModelTokenizer of {self._model}: {self.vocabulary} tokens, ends {list(self.eos_ids)}>"

    def encode(
        self,
        text: str,
        tokens_max: int,
        *,
        add_special_tokens: bool,
        proceed: Callable[[], None] = lambda: None,
        tenant: str = "",
    ) -> bytes:
        """The text's token ids as little-endian uint32; at most some 0.4 us per character (see `TextEncoder`). Of a
        text with more than `tokens_max`, a beginning that has more than that too.

        `proceed` is called every 50 ms or sooner, and raises to end it. `tenant` has words and segments of its own.
        Raises TextTooLong for a text that cannot have so few tokens, before any of it is tokenized, and WordTooLong.
        """
        if (tokens_min := self._encoder.tokens_min(text)) > tokens_max:
            raise TextTooLong(tokens_min)
        return self._encoder.encode(
            text, tokens_max, add_special_tokens=add_special_tokens, proceed=proceed, tenant=tenant
        )

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer | ByteLevelDetokenizer:
        """A new one, for one generation."""
        if self._bytes:
            return ByteLevelDetokenizer(self._bytes[skip_special_tokens])
        return Detokenizer(self.library, skip_special_tokens=skip_special_tokens)

    def _eos_ids(self, eos_token: str | None, generation_config: Mapping[str, Any]) -> tuple[int, ...]:
        listed = generation_config.get("eos_token_id")
        ids = set(listed if isinstance(listed, list) else [] if listed is None else [listed])
        if eos_token is not None and (named := self.library.token_to_id(eos_token)) is not None:
            ids.add(named)
        return tuple(sorted(ids))


def _tokenizer(model: str, files: Mapping[str, bytes]) -> Tokenizer:
    if "tokenizer.json" not in files:
        raise Corrupt(f"model {model!r} came without tokenizer.json: its worker cannot be spoken to in text")
    try:
        tokenizer = Tokenizer.from_buffer(files["tokenizer.json"])
    except Exception as error:  # the library raises nothing narrower
        raise Corrupt(f"tokenizer.json of model {model!r} cannot be read: {error}") from error
    # some files ask for both, meant for training: a prompt is taken as it is
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _json(model: str, files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        return msgspec.json.decode(files[name], type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Corrupt(f"{name} of model {model!r} cannot be read: {error}") from error


def _token_text(token: Any) -> str | None:
    """A token as the configuration files write it: text, or an object that holds it."""
    return token.get("content") if isinstance(token, dict) else token


def _template_source(files: Mapping[str, bytes], config: Mapping[str, Any], name: str = "default") -> str | None:
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode() if name == "default" else None
    source = config.get("chat_template")
    if isinstance(source, list):
        return next((named["template"] for named in source if named.get("name") == name), None)
    return source if name == "default" else None

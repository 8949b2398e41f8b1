"""Model files for front ends: tokenizer, template and generation defaults, with the operator's parsers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from core.errors import CallerError

TEMPLATE = "chat_template.jinja"
FILES = ("tokenizer.json", "tokenizer_config.json", TEMPLATE, "generation_config.json")
PARSERS = "contrail.json"
"""Names of parsers; not there if none is named."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The formats of a model's prompts and answers that its own files do not state."""

    tool_call_parser: str = ""
    """vLLM's name of how the model writes calls of tools; empty if tools are not offered to it."""
    reasoning_parser: str = ""
    """vLLM's name of how it writes its reasoning; empty if it does not reason."""
    chat_template: str = ""
    """A file to take instead of the model's own template."""


def tokenizer_files(folder: str, manner: ChatFormat = ChatFormat()) -> dict[str, bytes]:
    """The files by name, as far as they are there; none without a folder. Reads from disk. CallerError if it cannot."""
    if not folder:
        return {}
    paths = {name: Path(folder) / name for name in FILES}
    if manner.chat_template:
        paths[TEMPLATE] = Path(manner.chat_template)
        if not paths[TEMPLATE].is_file():
            raise CallerError(f"there is no chat template at {manner.chat_template}")
    try:
        files = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    except OSError as error:
        raise CallerError(f"cannot read the tokenizer: {error}") from error
    named = {name: value for name, value in asdict(manner).items() if value and name != "chat_template"}
    return files | ({PARSERS: json.dumps(named).encode()} if named else {})

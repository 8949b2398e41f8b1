"""What a front end needs of a model's folder to speak for it; workers hand it out."""

from __future__ import annotations

from pathlib import Path

from core.errors import CallerError

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def tokenizer_files(folder: str) -> dict[str, bytes]:
    """The files by name, as far as they are there; none without a folder. Reads from disk. CallerError if it cannot."""
    if not folder:
        return {}
    try:
        return {name: (Path(folder) / name).read_bytes() for name in FILES if (Path(folder) / name).is_file()}
    except OSError as error:
        raise CallerError(f"cannot read the tokenizer: {error}") from error

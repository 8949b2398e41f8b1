"""Logging of a process: one JSON object a line, or short lines on a terminal. Never any prompt text."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import orjson

from api.process.printable import printable_json, printable_lines

EXTRA = ("request_id", "worker", "replica", "model", "stream")
"""Fields that a record may carry through `extra`."""


class JsonLines(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, and the fields of EXTRA that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.standing: dict[str, str] = {}
        """Fields of EXTRA that hold for every line of this process."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= self.standing
        line |= {name: str(getattr(record, name)) for name in EXTRA if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return printable_json(orjson.dumps(line).decode())


class ShortLines(logging.Formatter):
    """For a terminal: the time of day, the level if it is not INFO, the message, the fields in brackets."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        fields = " ".join(f"{name}={getattr(record, name)}" for name in EXTRA if hasattr(record, name))
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        text = f"{time} {level}{record.getMessage()}{f' [{fields}]' if fields else ''}"
        return printable_lines(f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text)


def configure_logging(level: int = logging.INFO, stream: TextIO = sys.stderr) -> None:
    """All loggers of this process write to the stream, in the form that fits it, and nowhere else."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(ShortLines() if stream.isatty() else JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # its start and stop lines say nothing that ours do not
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def log_as(**fields: str) -> None:
    """Every JSON line of this process has these fields of EXTRA from now on: the id of the process."""
    assert set(fields) <= set(EXTRA)
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonLines):
            handler.formatter.standing |= fields


def configure_engine_logging(stream: TextIO = sys.stderr) -> None:
    """vLLM, and the processes that it starts, log in our form too, unless a person watches or the user says how."""
    if not stream.isatty():
        os.environ.setdefault("VLLM_LOGGING_CONFIG_PATH", str(Path(__file__).with_name("engine_logging.json")))

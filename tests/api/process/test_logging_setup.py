"""What a process says of itself."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys

import pytest

from api.process.logging_setup import JsonLines, configure_engine_logging, log_as


def test_every_line_says_who_speaks() -> None:
    """One JSON object a line, with who the process is and what the line is about; an exception stays in its line."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        log_as(replica="0123456789abcdef")
        root.warning("answered %d", 503, extra={"request_id": "r-1"})
        try:
            raise ValueError("two\nlines")  # noqa: TRY301 - the exception itself is what is logged
        except ValueError:
            root.error("failed", exc_info=sys.exc_info())
    finally:
        root.removeHandler(handler)
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["level"], first["message"]) == ("warning", "answered 503")
    assert (first["replica"], first["request_id"]) == ("0123456789abcdef", "r-1")
    assert second["replica"] == "0123456789abcdef"
    assert "ValueError: two\nlines" in second["exception"]


def test_engines_log_in_our_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh process with vLLM's logging set up by our file writes JSON lines; what the user set stays."""
    monkeypatch.delenv("VLLM_LOGGING_CONFIG_PATH", raising=False)
    configure_engine_logging(io.StringIO())
    code = (
        "import json, logging.config, os; "
        "logging.config.dictConfig(json.load(open(os.environ['VLLM_LOGGING_CONFIG_PATH']))); "
        "logging.getLogger('vllm.engine').warning('hello')"
    )
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stderr
    line = json.loads(said)
    assert (line["logger"], line["level"], line["message"]) == ("vllm.engine", "warning", "hello")
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", "mine")
    configure_engine_logging(io.StringIO())
    assert os.environ["VLLM_LOGGING_CONFIG_PATH"] == "mine"

"""What a process says of itself."""

from __future__ import annotations

import io
import json
import logging
import sys

from api.logs import JsonLines, log_as


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

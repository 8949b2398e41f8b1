"""The examples, called as somebody does who has not read them: one sentence, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streams.embedded.loopback_ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("time_travel.py",), "usage: time_travel.py EXPORT [KEY_FILE]"),
        (("time_travel.py", "nothing.contrail"), "nothing.contrail"),
        (("conversation.py", "a", "b"), "usage: conversation.py [BASE_URL]"),
        (("conversation.py", f"http://127.0.0.1:{free_port()}/v1"), "Connection error. (start one with `make serve`)"),
    ],
)
def test_what_is_missing_is_one_sentence(words: tuple[str, ...], said: str) -> None:
    """On standard error, with a status that is not 0."""
    command = [sys.executable, str(EXAMPLES / words[0]), *words[1:]]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode != 0
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1

"""One question, two processes: the same answer, whatever order sets and dictionaries of texts have there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.replay.simulate.talks import talks, written

ROOT = Path(__file__).resolve().parents[3]
FOUR = ["--workers", "3", "--speed-up", "20", "--replicas", "4", "--lag", "50", "--json"]
AT_ONCE = ["--policy", "kv"]
HELD = ["--set", "hold_max_ms=500,remote_prefill_min_tokens=600"]
DISAGGREGATED = [*HELD, "--prefill-workers", "2", "--failures-per-hour", "3600"]
PROGRAM = """
import json, sys
from api.cli.main import contrail
for words in json.load(sys.stdin):
    contrail(words, standalone_mode=False)
"""


def asked(questions: list[list[str]], order: str) -> subprocess.Popen[str]:
    """Somebody asks them in a process of its own, in which hashes of texts are those of that number."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": order},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(questions))
    process.stdin.close()
    return process


def found(process: subprocess.Popen[str]) -> list[Any]:
    """What it said, but for how long it took."""
    assert process.stdout is not None
    with process:
        text, decoder, each = process.stdout.read(), json.JSONDecoder(), []
    while text := text.strip():
        answer, end = decoder.raw_decode(text)
        assert answer.pop("wall_s") > 0
        each.append(answer)
        text = text[end:]
    return each


def test_two_processes_find_the_same(tmp_path: Path) -> None:
    """Four replicas that lag, send at once or hold requests, with prefill workers and without. Every number, and the
    digest of all decisions and results."""
    lines = talks(turns=3)
    trace = str(written(tmp_path / "trace.jsonl", lines))
    questions = [["simulate", trace, *FOUR, *more] for more in (AT_ONCE, HELD, DISAGGREGATED)]
    first, second = map(found, [asked(questions, order) for order in ("1", "2")])

    assert first == second
    assert len({each["digest"] for each in first}) == len(questions)
    assert [each["requests"] for each in first] == [len(lines)] * len(questions)
    assert first[0]["disaggregation"] is None
    assert first[2]["disaggregation"]["jobs"]["pulled"] > 0

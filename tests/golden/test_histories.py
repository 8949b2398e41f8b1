"""Old histories: every answer about them is what it was, word for word; and equal simulations give equal logs.

`make_histories` has written what is compared. An answer that is long is kept as its digest.
"""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from api.cli.main import contrail
from core.errors import CallerError

FOLDER = Path(__file__).with_name("histories")
HISTORIES = ("live", "disagg", "simulated")
ANSWER_CHARS_MAX = 4_000
"""A longer answer is kept as its digest."""
MADE = {"seconds", "decisions_per_s", "wall_s"}
"""Keys that say of the run, and nothing of the history."""
ADDED = {
    "cache_assumed",
    "concurrent",
    "delay",
    "log_late_ms",
    "first_token_ms",
    "pause_ms",
    "summary",
    "matched",
    "near_requests",
    "near_tokens",
    "near_ms",
    "decided_after_ms",
    "first_tokens",
    "course",
    "host_blocks",
    "host_us_per_block",
    "disk_blocks",
    "disk_us_per_block",
    "pool_blocks",
    "pool_us_per_block",
    "fetch",
    "adapter",
    "loads_adapter",
    "fetch_mb_per_s",
    "fetch_us",
    "learns",
    "profile",
    "load_cost",
    "load_ms",
    "loading",
    "first_active_times",
    "first_active_tokens",
    "turnover",
    "turnover_cost",
    "turnover_times",
}
"""Keys that came after the answers were written …"""
SESSION = "session"
"""… and this one, as text: in an explanation a session's order of workers has the same key."""
SIMULATIONS: dict[str, tuple[str, ...]] = {
    "8 workers": ("--workers", "8"),
    "8 workers, 4 replicas": ("--workers", "8", "--replicas", "4"),
    "4 workers, 2 replicas": ("--workers", "4", "--replicas", "2"),
    "jitter": ("--workers", "8", "--jitter", "3000", "--seed", "1"),
    "replicas": ("--workers", "4", "--replicas", "4", "--lag", "100"),
    "prefill workers": ("--workers", "4", "--prefill-workers", "2", "--set", "remote_prefill_min_tokens=2048"),
    "failures": ("--workers", "4", "--failures-per-hour", "60", "--seed", "2"),
    "closed loop": ("--workers", "4", "--concurrency", "16"),
}


def _trace() -> str:
    """Talks whose turns begin as the one before ended, in the format of public traces."""
    choose, lines = random.Random(7), []
    for talk in range(40):
        blocks, at_ms = [talk % 5, 10_000 + talk], talk * 700
        for turn in range(5):
            blocks += [100_000 + talk * 1_000 + turn * 50 + at for at in range(choose.randrange(1, 12))]
            lines.append((at_ms, len(blocks) * 512, choose.randrange(8, 200), list(blocks)))
            at_ms += choose.randrange(500, 9_000)
    return "".join(
        json.dumps({"timestamp": at_ms, "input_length": tokens, "output_length": out, "hash_ids": blocks}) + "\n"
        for at_ms, tokens, out, blocks in sorted(lines)
    )


TRACE = _trace()


def run(*words: str) -> str:
    """What the command prints."""
    try:
        done = CliRunner().invoke(contrail, list(words), catch_exceptions=False)
    except CallerError as error:
        return f"refused\n{json.dumps(str(error))}"
    return f"exit status {done.exit_code}\n{done.stdout}"


def without_made(value: Any) -> Any:
    """Without what says of the run alone."""
    if isinstance(value, dict):
        there = ((key, each) for key, each in value.items() if not (key == SESSION and isinstance(each, str)))
        return {key: without_made(each) for key, each in there if key not in MADE | ADDED}
    return [without_made(each) for each in value] if isinstance(value, list) else value


def kept(text: str) -> str:
    """The exit status and the JSON, or its digest if it is long."""
    status, _, output = text.partition("\n")
    output = "\n".join(json.dumps(without_made(json.loads(line))) for line in _documents(output))
    if len(output) > ANSWER_CHARS_MAX:
        output = f"{len(output)} characters, sha256 {hashlib.sha256(output.encode()).hexdigest()}"
    return f"{status}; {output}"


def _documents(output: str) -> list[str]:
    """One JSON value, or one per line."""
    try:
        json.loads(output)
    except json.JSONDecodeError:
        return output.splitlines()
    return [output]


def requests_of(history: str) -> list[str]:
    """A few of its request ids, of each outcome."""
    file = str(FOLDER / f"{history}.contrail")
    found = []
    for outcome in ("stop", "length", "error", "worker_lost", "replica_lost", "under_way", "abort", "rejected"):
        text = run("explain", "--log", file, "--outcome", outcome, "--limit", "3", "--json")
        listed = json.loads(text.partition("\n")[2] or "{}")
        found += [each["request"] for each in listed.get("requests", [])]
    return list(dict.fromkeys(found))


def questions(history: str) -> dict[str, tuple[str, ...]]:
    """Everything that is asked of it, by name."""
    asked: dict[str, tuple[str, ...]] = {
        "verify": ("replay", "verify", "--jobs", "1"),
        "verify with the key": ("replay", "verify", "--jobs", "1", "--key-file", str(FOLDER / f"{history}.key")),
        "list": ("explain", "--limit", "500"),
        "slowest": ("explain", "--slowest", "10"),
        "mispredicted": ("explain", "--mispredicted", "10"),
        "what-if": ("replay", "what-if"),
        "what-if, changes": ("replay", "what-if", "--set", "own_weight=3", "--changes"),
        "what-if, sweep": ("replay", "what-if", "--policy", "kv", "--sweep", "prefill_weight=1,4"),
        "what-if, closed loop": ("replay", "what-if", "--closed-loop", "--jobs", "1"),
        "bisect": ("replay", "bisect"),
        "bisect, settings": ("replay", "bisect", "--set", "own_weight=2"),
    }
    for request in requests_of(history):
        asked[f"explain {request}"] = ("explain", request)
        asked[f"at {request}"] = ("replay", "at", request)
    return asked


def answered(history: str, *words: str) -> str:
    """The command's answer as JSON, kept."""
    file = FOLDER / f"{history}.contrail"
    return kept(run(*words, "--log", str(file), "--json"))


def simulated(case: str) -> dict[str, str]:
    """What the simulation told, and a digest of its log as events."""
    with tempfile.TemporaryDirectory(prefix="contrail-simulated-") as name:
        folder = Path(name)
        (folder / "trace.jsonl").write_text(TRACE)
        out = str(folder / "out.contrail")
        report = kept(run("simulate", str(folder / "trace.jsonl"), *SIMULATIONS[case], "--json", "--out", out))
        return {"report": report, "decisions": kept(run("explain", "--log", out, "--limit", "1000", "--json"))}


@pytest.mark.parametrize("history", HISTORIES)
def test_every_answer_is_what_it_was(history: str) -> None:
    """Verify, explain, at, what-if and bisect over an old export."""
    golden = json.loads((FOLDER / f"{history}.json").read_text())
    asked = questions(history)
    assert list(asked) == list(golden)
    found = {question: answered(history, *words) for question, words in asked.items()}
    assert {question: text for question, text in found.items() if text != golden[question]} == {}


@pytest.mark.parametrize("case", SIMULATIONS)
def test_equal_simulations_give_equal_logs(case: str) -> None:
    """The figures, and every decision of its log."""
    assert simulated(case) == json.loads((FOLDER / "simulations.json").read_text())[case]

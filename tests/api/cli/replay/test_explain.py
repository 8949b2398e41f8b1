"""`contrail explain`: from a file and from a deployment that runs, as text and as JSON; lists, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from api.cli.replay.explain import explain_command
from core.errors import CallerError
from core.events import RequestPrefilled
from core.prompt import hashes_from_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from tests.api.deployed import deployed
from tests.api.lived import lived
from tests.projections.facts import finished, joined, load, prefilled, prompt, removed, stored
from tests.replay.staged import KV, A, B, Stage

ATTEMPT_KEYS = {
    "attempt", "seq", "time", "replica", "replica_name", "policy", "settings_revision", "prompt_tokens", "block_size",
    "prompt_blocks", "worker", "worker_name", "candidates", "candidates_total", "excluded", "local", "cursor", "digest",
    "predicted_cached_tokens", "why", "told_tokens", "real_cached_tokens", "ttft_ms", "outcome", "output_tokens",
    "duration_ms", "detail",
}  # fmt: skip
"""What others rely on; there may be more."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """`slow` was predicted 4 cached blocks on `a`, which had removed two of them 40 ms before; then `open`."""
    stage, asked = Stage(), prompt(1, 2, 3, 4, 5, 6)
    hashes = hashes_from_bytes(asked.hashes())
    stage.say(KV, A, joined("a"), stored(*hashes[:4]))
    stage.say(KV, B, joined("b"))
    stage.say(LOAD, A, load())
    stage.replica(settings=RoutingSettings(policy="kv", prefill_weight_m=1500))
    stage.clock.advance(1000)
    stage.say(KV, A, removed(*hashes[2:4]))
    stage.clock.advance(40)
    stage.route("slow", asked, lag={KV: 1})
    stage.clock.advance(300)
    stage.tell(RequestPrefilled(request="slow", attempt=0, cached_tokens=8, ttft_ms=300))
    stage.tell(finished("slow"))
    stage.clock.advance(1000)
    stage.route("open", prompt(9))
    stage.tell(prefilled("open"))
    return stage.archived(tmp_path / "log.contrail")


def run(log: Path, *words: str) -> Result:
    return CliRunner().invoke(explain_command, [*words, "--log", str(log)], catch_exceptions=False)


def json_of(log: Path, *words: str) -> Any:
    result = run(log, *words, "--json")
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_a_page_says_why_and_what_was_late(log: Path) -> None:
    """First why, what would have had to differ, and what came of it; then on what it was decided."""
    page = run(log, "slow").stdout
    lines = [line.strip() for line in page.splitlines()]
    assert lines[0] == "request slow, model tiny"
    assert any(line.startswith("why") and "a costs 6 less than b" in line for line in lines)
    assert any(line.startswith("else") and "b would have won with 4 more cached blocks there" in line for line in lines)
    assert "removed 40 ms before the decision, and not seen in time (kv_0:3)" in page
    assert "settings revision 1: prefill_weight 1.5" in page
    assert "decided again from the log, with the same result" in page
    assert "first token after 300 ms" in page
    assert "1 of 40 ms ago" in page  # not seen yet
    assert sum("→ a" in line for line in lines) == 2
    assert max(map(len, page.splitlines())) < 200


def test_json_keys_stay(log: Path) -> None:
    """All that was there before is there, with the same meaning."""
    found = json_of(log, "slow")
    assert {"request", "model", "attempts", "rejections"} <= found.keys()
    (attempt,) = found["attempts"]
    assert attempt.keys() >= ATTEMPT_KEYS
    assert attempt["reuse"]["verdict"] == "removed_unseen"
    assert (attempt["predicted_cached_tokens"], attempt["real_cached_tokens"]) == (16, 8)
    assert [row["name"] for row in attempt["candidates"]] == ["a", "b"]
    assert attempt["candidates"][0]["chosen"] is True
    assert json_of(log, "slow", "--whole") == found


@pytest.mark.parametrize(("word", "request_"), [("--last", "open"), ("chatcmpl-slow", "slow"), ("msg_open_0", "open")])
def test_a_request_need_not_be_typed_as_the_log_has_it(log: Path, word: str, request_: str) -> None:
    """The last one, and one by the id of its answer."""
    assert json_of(log, word)["request"] == request_


def test_lists(log: Path) -> None:
    """A table with how to look at one, or JSON."""
    table = run(log, "--slowest", "1").stdout
    assert "slow" in table
    assert "300 ms" in table
    assert "open" not in table
    assert f"contrail explain slow --log {log}" in table
    assert [each["request"] for each in json_of(log, "--slowest")["requests"]] == ["slow", "open"]
    assert [each["request"] for each in json_of(log, "--mispredicted", "5")["requests"]] == ["slow"]
    assert [each["request"] for each in json_of(log)["requests"]] == ["slow", "open"]
    assert [each["request"] for each in json_of(log, "--outcome", "under_way", "--replica", "r1")["requests"]] == [
        "open"
    ]
    assert [each["request"] for each in json_of(log, "--from", "slow", "--to", "open")["requests"]] == ["slow"]
    assert run(log, "--outcome", "abort").stdout == "No request in the log matches.\n"
    assert json_of(log, "--outcome", "abort") == {"requests": [], "matched": 0}
    with pytest.raises(CallerError, match="--outcome nonsense: no request ends so; there are abort, "):
        run(log, "--outcome", "nonsense")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nobody",), "knows no request 'nobody'"),
        (("slow", "--slowest", "3"), "one of them"),
        (("slow", "--last"), "one of them"),
        (("--last", "--outcome", "stop"), "one of them"),
        (("--turn", "2"), "give --session, too"),
        (("--session", "talk", "--turn", "2"), "the log knows no session 'talk'"),
        (("--last", "--tenant", "nobody"), "the log has no request of tenant 'nobody'"),
        (("--slowest", "3", "--mispredicted", "3"), "not both"),
        (("--worker", "z"), "no worker 'z' in this log; there are a, b"),
    ],
)
def test_what_cannot_be_asked(log: Path, words: tuple[str, ...], said: str) -> None:
    """One sentence that says what to do."""
    with pytest.raises(CallerError, match=said):
        run(log, *words)


async def test_of_a_deployment_that_runs(tmp_path: Path, nats_server: EmbeddedNats, etcd_server: EmbeddedEtcd) -> None:
    """The same from the real log: of a request, and of the last hour's requests."""
    async with deployed(tmp_path, nats_server, etcd_server) as here, lived(here) as it:
        await it.ask("first", list(range(60)))
        await it.ask("again", list(range(60)))
        status, found = await here.json(explain_command, "again")
        assert status == 0
        (attempt,) = found["attempts"]
        assert (attempt["again"], attempt["outcome"]) == ("same", "length")
        assert attempt["real_cached_tokens"] == attempt["predicted_cached_tokens"] == 48
        status, listed = await here.json(explain_command, "--slowest", "10")
        assert (status, {each["request"] for each in listed["requests"]}) == (0, {"first", "again"})
        page = await here.run(explain_command, "--from", "-5m")
        assert f"contrail explain first {' '.join(here.connection.words)}" in page.stdout
        for word in ("--last", "chatcmpl-again", "gain"):
            assert (await here.json(explain_command, word))[1]["request"] == "again"
        refused = await here.run(explain_command, "nobody")
        assert isinstance(refused.exception, CallerError)

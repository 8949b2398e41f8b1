"""`contrail cache` as people and scripts use it, on an export."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from api.cli.main import contrail
from core.errors import CallerError
from replay.cache.cache_losses import cache_losses
from replay.session import ReplaySession
from replay.simulate.options import Options
from replay.simulate.simulation import simulate
from tests.replay.simulate.families import ENGINE, families

REQUESTS = 150


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Requests of three tenants on two workers with small caches and two replicas that lag."""
    path = tmp_path_factory.mktemp("cache") / "log"
    options = Options(workers=2, engine=replace(ENGINE, capacity_blocks=40), replicas=2, lag_ms=50)
    arrivals = families(REQUESTS, every_us=30_000)
    simulate(options, [each._replace(tenant=f"t{n % 3}") for n, each in enumerate(arrivals)], archive=path)
    return path


def ask(log: Path, *words: str) -> Result:
    return CliRunner().invoke(contrail, ["cache", "--log", str(log), *words])


def as_json(log: Path, *words: str) -> Any:
    found = ask(log, *words, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def total_of(lines: list[str], label: str) -> int:
    """The tokens in the row that begins so."""
    (found,) = (line for line in lines if line.strip().startswith(label) and line.count(" % ") == 1)
    return int(found.split()[-1].replace(",", ""))


def test_the_table_and_the_sentence(log: Path) -> None:
    """Rows by cause in shares and tokens; then the judgement; then the basis."""
    found, page = as_json(log), ask(log).stdout
    lines = page.splitlines()
    total = found["total"]
    assert lines[0].startswith(f"{REQUESTS} attempts with {total['prompt_tokens']:,} prompt tokens, from 20")
    labels = ("available", "achieved", "evicted", "cold", "all prompt tokens")
    shown = {label: total_of(lines, label) for label in labels}
    assert shown == {
        "available": total["available_tokens"],
        "achieved": total["achieved_tokens"],
        "evicted": total["lost"]["evicted"],
        "cold": total["not_available"]["cold"],
        "all prompt tokens": total["prompt_tokens"],
    }
    assert found["judgement"]["text"] in lines
    assert found["judgement"]["verdict"] in {"workload", "capacity", "router"}
    assert "Exact: no more than 4,000,000 blocks" in page
    assert "messages are missing" not in page


def test_json_adds_up(log: Path) -> None:
    """Stable keys; all parts together are all prompt tokens."""
    found = as_json(log)
    total = found["total"]
    assert list(found) == [
        "by", "judgement", "displacement", "total", "rows", "rows_total", "apart", "first_ms", "last_ms",
        "history_from_ms", "gaps", "exact", "blocks_max", "forgotten_blocks",
    ]  # fmt: skip
    assert total["available_tokens"] == total["achieved_tokens"] + total["lost_tokens"]
    assert total["lost_tokens"] == sum(total["lost"].values()) > 0
    assert total["not_available_tokens"] == sum(total["not_available"].values())
    assert total["available_tokens"] + total["not_available_tokens"] == total["prompt_tokens"]
    assert total["achieved_share"] == total["achieved_tokens"] / total["prompt_tokens"]
    assert (found["exact"], found["history_from_ms"], found["rows"]) == (True, None, [])
    assert as_json(log) == found


@pytest.mark.parametrize(("by", "rows"), [("tenant", 3), ("worker", 2), ("hour", 1)])
def test_groups_add_up(log: Path, by: str, rows: int) -> None:
    """Each attempt is in one row."""
    found = as_json(log, "--by", by)
    assert len(found["rows"]) == found["rows_total"] == rows
    for key in ("attempts", "prompt_tokens", "lost_tokens", "available_tokens"):
        assert sum(row[key] for row in found["rows"]) == found["total"][key]
    page = ask(log, "--by", by).stdout
    assert all(row["name"][:16] in page for row in found["rows"])
    assert found["total"]["worst_turn"]["request"] in page


def test_tenants_push_each_other_out(log: Path) -> None:
    """The sums of all rows are those of all; one sentence judges; other groups have none."""
    found, page = as_json(log, "--by", "tenant"), ask(log, "--by", "tenant").stdout
    total = found["total"]["displaced_tokens"]
    assert total["lost_to_others"] == total["took_from_others"] > 0
    for key, tokens in total.items():
        assert sum(row["displaced_tokens"][key] for row in found["rows"]) == tokens
    assert found["displacement"]["judgement"]["text"] in page.splitlines()
    line = [each for each in page.splitlines() if each.startswith("all ")][-1]
    assert [int(each.replace(",", "")) for each in line.split()[1:]] == list(total.values())
    assert "its room is taken by the block that is stored next" in " ".join(page.split())
    assert as_json(log, "--by", "session")["displacement"]["judgement"] is None
    workers = as_json(log, "--by", "worker")
    assert (workers["displacement"], workers["rows"][0]["displaced_tokens"]) == (None, None)


def test_rows_are_bounded(log: Path) -> None:
    """The text and JSON say how many there are."""
    found = as_json(log, "--by", "session", "--limit", "2")
    assert len(found["rows"]) == 2
    assert found["rows_total"] > 2
    assert found["rows"][0]["lost_tokens"] >= found["rows"][1]["lost_tokens"]
    page = ask(log, "--by", "session", "--limit", "2").stdout
    assert f"2 of {found['rows_total']} shown; --limit N shows more" in page


def test_a_range(log: Path) -> None:
    """From a moment up to one; the rest is in no sum. An empty range is refused with a sentence."""
    some = as_json(log, "--from", "request-50", "--to", "request-60")
    assert some["total"]["attempts"] == 10
    assert as_json(log, "--to", "request-50")["total"]["attempts"] == 50
    empty = ask(log, "--from", "request-60", "--to", "request-60")
    assert isinstance(empty.exception, CallerError)
    assert "no request in this part of the record counts: none is there" in str(empty.exception)


def test_beyond_the_bound_the_page_says_so(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the number of blocks that were forgotten."""
    monkeypatch.setattr("api.cli.replay.cache.cache_losses", partial(cache_losses, blocks_max=20))
    found = as_json(log)
    assert not found["exact"]
    page = ask(log).stdout
    assert f"Not exact: {found['forgotten_blocks']:,} blocks beyond 20" in page
    assert "Exact:" not in page.replace("Not exact:", "")


def test_a_program_asks_the_same(log: Path) -> None:
    with ReplaySession.open(log) as session:
        found = session.cache_losses(by="tenant")
    assert [row.name for row in found.rows] == [row["name"] for row in as_json(log, "--by", "tenant")["rows"]]


def test_help_has_examples() -> None:
    found = CliRunner().invoke(contrail, ["cache", "--help"]).stdout
    assert "contrail cache --from -1h --by tenant" in found
    assert "--limit" in found

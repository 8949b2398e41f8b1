"""`contrail replay at`: the state at a moment, as text and JSON, from a file and from a deployment that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from api.cli.replay.state_at import at
from core.errors import CallerError, Corrupt
from core.event_json import hash_text, time_text
from core.events import WorkerLost
from core.ids import LOST_SUFFIX
from core.prompt import Prompt, hashes_from_bytes, tokens_to_bytes
from core.settings import RoutingSettings
from core.subjects import LOAD
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from tests.api.deployed import deployed
from tests.api.lived import lived
from tests.api.scripted import files, tokenizer
from tests.fixtures.eventually import eventually
from tests.projections.facts import joined, load, prompt, stored
from tests.replay.staged import KEY, KV, START_MS, A, B, R, Stage

TEXT = "Tell me about bridges, and leave out nothing."
TOKENS = [0, *tokenizer().encode(TEXT, add_special_tokens=False).ids]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`log.contrail`, the key, a tokenizer and a text; worker `a` holds the text's blocks, `b` is lost later."""
    stage = Stage()
    hashes = hashes_from_bytes(Prompt(tokens_to_bytes(TOKENS), 4, KEY.hash_seed).hashes())
    stage.say(KV, A, joined("a"), stored(*hashes))
    stage.say(KV, B, joined("b"))
    stage.say(LOAD, A, load(2))
    stage.replica(settings=RoutingSettings(policy="kv", decode_weight_m=500))
    stage.clock.advance(1000)
    stage.route("first", prompt(1, 2, 3))
    stage.clock.advance(1000)
    stage.say(KV, B + LOST_SUFFIX, WorkerLost(by=R, reason="gone"), about=B)
    stage.say(KV, A, stored(77))
    stage.archived(tmp_path / "log.contrail")
    (tmp_path / "key").write_text(KEY.secret.hex())
    (tmp_path / "model").mkdir()
    for name, content in files().items():
        (tmp_path / "model" / name).write_bytes(content)
    (tmp_path / "prompt.txt").write_text(TEXT)
    return tmp_path


def run(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(at, [*words, "--log", str(folder / "log.contrail")], catch_exceptions=False)


def json_of(folder: Path, *words: str) -> Any:
    result = run(folder, *words, "--json")
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_a_page_of_the_state(folder: Path) -> None:
    """The log's own, and what a replica believed at its last decision."""
    page = run(folder, time_text(START_MS + 1500)).stdout
    assert "the log up to kv_0:2, load:1, routing:3" in page
    assert "decode_weight 0.5" in page
    assert f"a ({A})" in page
    assert "1,500 ms ago" in page
    assert "r1" in page
    believed = run(folder, "kv:4", "--replica", "r1").stdout
    assert f"the view of r1 ({R}) when it routed first (routing:3)" in believed
    assert "it had read the log up to kv_0:2, load:1, routing:2" in believed
    assert max(map(len, page.splitlines())) < 200


def test_json(folder: Path) -> None:
    """Stable keys; hashes and digests are text, sequences are numbers; a cursor is a moment."""
    held = json_of(folder, "kv_0:2,load:1,routing:3")
    assert held["cursor"] == {"kv_0": 2, "load": 1, "routing": 3}
    assert len(held["digest"]) == 16
    assert held["workers"][0]["blocks"] == {"device": len(TOKENS) // 4}
    assert {"time", "time_ms", "cursor", "digests", "digest", "incomplete", "seat", "settings", "settings_differ"} <= (
        held.keys()
    )
    assert (held["workers"][0]["load"]["waiting"], held["in_flight"][0]["request"]) == (2, "first")
    assert held["seat"] is None
    assert json_of(folder, "first", "--replica", R)["seat"]["request"] == "first"


def test_the_difference(folder: Path) -> None:
    """What changed between two moments."""
    found = json_of(folder, "routing:3", "--diff", "kv_0:4,load:1,routing:3")
    assert [each["name"] for each in found["workers_gone"]] == ["b"]
    assert found["requests_started"] == 1
    assert json_of(folder, "-1h", "--diff", "-0s")["workers_joined"][0] == {"id": A, "name": "a"}
    page = run(folder, "routing:3", "--diff", "kv_0:4,load:1,routing:3").stdout
    assert f"worker b ({B}) is gone" in page
    assert "nothing has changed in the state" in run(folder, "routing:3", "--diff", "routing:3").stdout


def test_a_prompt(folder: Path) -> None:
    """A text in the model's tokenizer, or token ids: both find the blocks that are cached; another salt finds none."""
    key = ("--key-file", str(folder / "key"))
    text = ("--prompt", str(folder / "prompt.txt"), "--tokenizer", str(folder / "model"))
    ids = ("--tokens", ",".join(map(str, TOKENS)))
    asked = json_of(folder, "first", *ids, *key)
    assert asked == json_of(folder, "first", *text, *key)
    assert asked == json_of(folder, "first", *text[:3], str(folder / "model" / "tokenizer.json"), *key)
    assert (asked["worker_name"], asked["predicted_cached_tokens"]) == ("a", (len(TOKENS) - 1) // 4 * 4)
    assert [row["name"] for row in asked["candidates"]] == ["a", "b"]
    assert json_of(folder, "first", *ids, *key, "--replica", "r1")["worker_name"] == "a"
    assert json_of(folder, "first", *ids, *key, "--cache-salt", "mine")["predicted_cached_tokens"] == 0
    page = run(folder, "first", *ids, *key).stdout
    assert f"for tiny: would go to a ({A})" in page
    assert "b would have won" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("first", "--tokens", "1,2"), "give --key-file FILE"),
        (("first", "--tokens", "1,x", "--key-file", "KEY"), "token ids with commas"),
        (("first", "--tokens", "1", "--prompt", "x"), "not both"),
        (("first", "--tokens", "1", "--diff", "first"), "one moment at a time"),
        (("first", "--prompt", "TEXT", "--key-file", "KEY"), "needs the model's tokenizer: give --tokens"),
        (("first", "--prompt", "nowhere", "--tokenizer", "MODEL", "--key-file", "KEY"), "cannot be read as text"),
        (("first", "--prompt", "TEXT", "--tokenizer", "TEXT", "--key-file", "KEY"), "tokenizer"),
        (("first", "--tokens", "1", "--model", "huge", "--key-file", "KEY"), "no worker served the model 'huge'"),
        (("first", "--replica", "r9"), "no replica 'r9' in this log; there are r1"),
        (("routing:99",), "lies beyond the end of the recording"),
        (("nobody",), "no request that this recording knows"),
    ],
)
def test_what_cannot_be_asked(folder: Path, words: tuple[str, ...], said: str) -> None:
    """One sentence that says what to do."""
    places = {"KEY": folder / "key", "TEXT": folder / "prompt.txt", "MODEL": folder / "model"}
    with pytest.raises((CallerError, Corrupt), match=said):
        run(folder, *(str(places.get(word, word)) for word in words))


async def test_of_a_deployment_that_runs(tmp_path: Path, nats_server: EmbeddedNats, etcd_server: EmbeddedEtcd) -> None:
    """The state is that of the live replica, by its digest; a text is asked in the workers' own tokenizer."""
    async with deployed(tmp_path, nats_server, etcd_server) as here, lived(here) as it:
        tokens = [0, *tokenizer().encode(TEXT * 4, add_special_tokens=False).ids]
        await it.ask("first", tokens)
        state = it.router.state
        await eventually(lambda: any(state.index.blocks(member.worker) for member in state.alive()), "blocks")
        cursor = {stream: position.seq for stream, position in state.cursor.items()}
        digest = hash_text(state.digest)
        moment = ",".join(f"{stream}:{seq}" for stream, seq in cursor.items())
        status, held = await here.json(at, moment)
        assert (status, held["digest"], held["cursor"]) == (0, digest, cursor)
        text = tmp_path / "prompt.txt"
        text.write_text(TEXT * 4)
        status, asked = await here.json(at, moment, "--prompt", str(text), "--replica", "frontend-0")
        assert status == 0
        status, asked = await here.json(at, moment, "--prompt", str(text))
        assert (status, asked["prompt_tokens"], asked["predicted_cached_tokens"]) == (
            0,
            len(tokens),
            (len(tokens) - 1) // 16 * 16,
        )
        status, believed = await here.json(at, "-0.0h", "--replica", "frontend-0")
        assert (status, believed["seat"]["request"]) == (0, "first")

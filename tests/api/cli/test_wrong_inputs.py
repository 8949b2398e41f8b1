"""All that a new user may type wrong is answered at once, in a sentence that says what to do."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.main import main
from api.cli.output import EXIT_NOT_ASKED
from tests.api.cli.wrong_inputs import WRONG_BODIES, WRONG_INPUTS, WrongBody, WrongInput, make_files
from tests.api.conftest import Api

CASES_MIN = 60
COMMANDS = {
    "up", "explain", "cache", "events", "replay", "export", "simulate", "settings", "doctor", "keys", "frontend",
    "worker", "prefill-worker", "restart", "replicas", "snapshots", "debug", "nats", "deployment-key",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with the table's files and a log; no variable of ours is set."""
    made = tmp_path_factory.mktemp("wrong")
    with pytest.MonkeyPatch.context() as patch:
        for name in [each for each in os.environ if each.startswith("CONTRAIL_")]:
            patch.delenv(name)
        patch.setenv("XDG_STATE_HOME", str(made / "state"))
        patch.chdir(made)
        make_files(made)
        words = ["simulate", "small.jsonl", "--workers", "2", "--out", "small.contrail"]
        patch.setattr("sys.argv", ["contrail", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        yield made


@pytest.mark.parametrize("case", WRONG_INPUTS, ids=lambda case: case.line)
def test_a_wrong_command_line_is_answered(
    folder: Path, case: WrongInput, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On stderr alone, with status 2, and without a traceback."""
    words = shlex.split(case.line)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    monkeypatch.setattr("sys.argv", ["contrail", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capfd.readouterr()
    lines = printed.err.replace(str(folder), ".").splitlines()
    if lines[0].startswith("Usage: "):
        assert lines[1].startswith("Try 'contrail ")
        lines = lines[3:]
    assert (ended.value.code, printed.out, lines[0]) == (EXIT_NOT_ASKED, "", case.answer)
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("case", WRONG_BODIES, ids=lambda case: f"{case.path} {case.body}")
async def test_a_wrong_body_is_answered(api: Api, case: WrongBody) -> None:
    """In the shape of errors that the clients of the path know; no worker is asked."""
    answer = await api.http.post(case.path, content=case.body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (case.status, case.answer)
    assert not api.backend.requests


def test_the_table_covers_every_command() -> None:
    """With sixty cases or more, none twice."""
    lines = [case.line for case in WRONG_INPUTS]
    assert len(set(lines)) == len(lines) >= CASES_MIN
    words = {next(word for word in line.split() if "=" not in word) for line in lines}
    assert words >= COMMANDS

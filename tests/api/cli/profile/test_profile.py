"""`contrail profile` of an engine that it starts, as people and scripts use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from api.cli.main import contrail
from api.config.profile_file import read_profile
from core.errors import CallerError

ENGINE = ("--engine", "simulated", "--model", "m", "--seconds", "1.5")
ARGUMENTS = ("--", "--context-max", "256", "--capacity-blocks", "16", "--max-seqs", "2")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(contrail, ["profile", *map(str, words)])


def refused(*words: str | Path) -> str:
    done = run(*words)
    assert isinstance(done.exception, CallerError), done.output
    return str(done.exception)


def test_an_engine_is_measured_and_its_profile_written(tmp_path: Path) -> None:
    """As a table, with the next step; a second run overwrites it only with --force."""
    file = tmp_path / "m.json"
    done = run(*ENGINE, "--out", file, *ARGUMENTS)

    assert done.exit_code == 0, done.output
    assert "m on simulated, measured in" in done.stdout
    assert "512 tokens in its cache, blocks of 32 tokens, 2 requests at once" in done.stdout
    assert "prompt tokens  to first token  tokens/s  prompts" in done.stdout
    assert f"next: `planner: {{profile: {file}}}` in the deployment's file" in done.stdout
    found = read_profile(file)
    assert (found.model, found.engine, found.slots) == ("m", "simulated", 2)
    assert found.capacity().room_tokens == 512
    assert refused(*ENGINE, "--out", file, *ARGUMENTS).endswith("overwrite it with --force")
    assert read_profile(file) == found
    assert run(*ENGINE, "--out", file, "--force", *ARGUMENTS).exit_code == 0
    assert read_profile(file).digest != found.digest


def test_scripts_get_the_profile_as_json() -> None:
    """The same keys as the file's."""
    done = run(*ENGINE, "--json", *ARGUMENTS)

    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert (value["format"], value["version"], value["room_tokens"]) == ("contrail-profile", 1, 512)
    assert {"tokens", "us", "repeats"} == value["prefill"][0].keys()
    assert {"requests", "tokens", "us", "repeats"} == value["decode"][0].keys()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--engine", "simulated"), "--engine needs --model NAME"),
        (("--model", "m"), "--model and arguments are for an engine that is started here: give --engine, too"),
        (("--", "--max-seqs", "2"), "--model and arguments are for an engine"),
        ((*ENGINE, "--worker", "decode-0"), "leave out --worker and the deployment, or --engine"),
        ((*ENGINE, "--data", "data"), "leave out --worker and the deployment, or --engine"),
        ((*ENGINE, "--", "--context-max", "20"), "too short for a profile"),
        ((*ENGINE, "--", "--no-such", "20"), "no_such"),
        (("--data", "nowhere"), "no deployment runs with the data folder nowhere"),
    ],
)
def test_wrong_words_get_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    """Before anything is measured; nothing is written."""
    assert sentence in refused(*words)


def test_a_folder_that_is_not_there_is_found_before_the_measurement(tmp_path: Path) -> None:
    """A minute later it would be too late."""
    assert "there is no folder" in refused(*ENGINE, "--out", tmp_path / "none" / "m.json", *ARGUMENTS)
    assert not list(tmp_path.iterdir())


def test_help_has_examples() -> None:
    """And says where the file goes."""
    text = run("--help").output
    assert "contrail profile --engine vllm --model Qwen/Qwen3-8B --out qwen.json -- --max-num-seqs 64" in text
    assert "planner: {profile: qwen.json}" in " ".join(text.split())

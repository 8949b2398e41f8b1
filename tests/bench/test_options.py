"""What measurements are asked for on the command line: traces that are not there, options that would have no effect."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench import bounds, disagg, routing
from bench import slice as slices


def parsed(module: object, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    getattr(module, "extend", routing.which_trace)(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("module", [routing, bounds, slices])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trace", "no/such.jsonl"), "--trace no/such.jsonl: there is no such file"),
        (("--traces", "no"), f"there is no no/{routing.TRACE}"),
        ((), "give --trace FILE, or --traces DIR"),
    ],
)
def test_a_trace_that_is_not_there_is_refused(
    module: object,
    words: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("CONTRAIL_TRACES", raising=False)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SystemExit) as ended:
        list(module.measure(parsed(module, *words)))  # type: ignore[attr-defined]

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_trace_in_the_folder_that_the_environment_names_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / routing.TRACE
    file.touch()
    monkeypatch.setenv("CONTRAIL_TRACES", str(tmp_path))

    assert routing.trace_path(parsed(routing)) == file
    assert routing.trace_path(parsed(routing, "--trace", str(file))) == file


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--engine vllm --quick", "no smaller run"),
        ("--engine vllm --parts trace steady", "the part steady alone"),
        ("--engine vllm --seconds 3 --speed-up 2", "--speed-up, --seconds: of the part trace"),
        ("--parts cost --time-scale 0.5", "--time-scale: of the part trace"),
        ("--parts steady --traces there", "--traces: of the part trace"),
    ],
)
def test_options_without_an_effect_are_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        disagg.parts(parsed(disagg, *words.split()))

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("", ["trace", "steady", "cost"]),
        ("--quick --seconds 3", ["trace", "steady", "cost"]),
        ("--engine vllm", ["steady"]),
        ("--engine vllm --parts steady", ["steady"]),
        ("--parts trace --time-scale 0.5", ["trace"]),
    ],
)
def test_the_parts_that_are_wanted(words: str, parts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTRAIL_TRACES", "there")  # whoever has it set is not refused for that

    assert list(disagg.parts(parsed(disagg, *words.split()))) == parts


def test_bounds_takes_no_options_of_policies() -> None:
    with pytest.raises(SystemExit):
        parsed(bounds, "--policies", "kv")

"""Commands in the documentation: each is parsed by the command line that it is meant for, without being run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from api.cli.main import contrail
from tests.docs.pages import BESIDE, PAGES, ROOT, Block, blocks, commands, name, place, spans

FOREIGN = {"aider", "aiperf", "claude", "curl", "export", "nats", "openssl", "qwen", "sglang", "vllm"}
"""Programs of others that the pages start."""
PLACEHOLDER = re.compile(r"^[A-Z][A-Z_]*$|^\$")
"""REQUEST_ID, DIR, $(POD_NAME): words that stand for a value."""


def parse_contrail(words: list[str], *, mentioned: bool) -> None:
    """UsageError for an unknown command, option or value, and, unless just `mentioned`, for a missing argument."""
    group: click.Command = contrail
    ctx = click.Context(contrail, info_name="contrail")
    while isinstance(group, click.Group):
        if not words or words[0] in {"--help", "--version", "--install-completion"}:
            return
        if default := getattr(type(group), "default", ""):
            words = words if words[0] in group.commands else [default, *words]
        command = group.get_command(ctx, words[0])
        if command is None:
            raise click.UsageError(f"contrail has no command {words[0]!r}")
        ctx, group, words = click.Context(command, parent=ctx, info_name=words[0]), command, words[1:]
    if "--help" not in words:
        check_words(ctx, group, words, mentioned=mentioned)


def check_words(ctx: click.Context, command: click.Command, words: list[str], *, mentioned: bool) -> None:
    """The parser knows all options; values that are no placeholders can be converted, without a look at the disk."""
    marked = [f"\0{word}" if re.fullmatch(r"-\d+[smhd]", word) else word for word in words]  # moments are no options
    values, left, _ = command.make_parser(ctx).parse_args(marked)
    if left:
        raise click.UsageError(f"one word too many: {left[0]!r}")
    for parameter in command.get_params(ctx):
        value = values.get(parameter.name)
        if parameter.required and not mentioned and parameter.value_is_missing(value):
            raise click.MissingParameter(ctx=ctx, param=parameter)
        if isinstance(value, str) and not PLACEHOLDER.match(value) and not isinstance(parameter.type, click.Path):
            parameter.type.convert(value, parameter, ctx)


def split_commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a line; comments, `&&` and variables before a command are taken off."""
    words: list[str] = []
    for word in [*shlex.split(line, comments=True), "&&"]:
        if word in {"&&", "|", "&", ">"}:
            if words:
                yield words
            words = []
        elif words or not re.match(r"^[A-Z_]+=", word):
            words.append(word)


def targets() -> set[str]:
    """The targets of the Makefile."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check(words: list[str], *, mentioned: bool = False) -> None:
    """AssertionError or UsageError says what is wrong with a command."""
    program = Path(words[0]).name
    if program == "contrail":
        parse_contrail(words[1:], mentioned=mentioned)
    elif program == "make":
        for target in [word for word in words[1:] if "=" not in word]:
            assert target in targets(), f"the Makefile has no target {target!r}"
    elif re.fullmatch(r"python(3\.11)?", program):
        check_python(words[1:])
    elif program == "pip":
        check_pip(words[1:])
    else:
        assert program in FOREIGN, f"{program!r} is neither ours nor known here"


def check_python(words: list[str]) -> None:
    if words[0] == "-m":
        module = words[1]
        if module.partition(".")[0] in {"bench", "tests"} and not module.endswith(".NAME"):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"there is no {module}"
        else:
            assert module == "venv" or module.endswith(".NAME")
    else:
        assert (ROOT / words[0]).exists(), f"there is no {words[0]}"


def check_pip(words: list[str]) -> None:
    """An editable installation names an extra that pyproject.toml has."""
    assert words[:2] == ["install", "-e"]
    extra = re.fullmatch(r"\.(?:\[(\w+)\])?", words[2])
    assert extra
    assert not extra[1] or f"\n{extra[1]} = [" in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("block", blocks("sh", [*PAGES, *BESIDE]), ids=place)
def test_commands_of_shell_blocks(block: Block) -> None:
    for line in commands(block.text):
        for words in split_commands(line):
            check(words)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_inside_sentences(page: Path) -> None:
    """`contrail …`, `make …` and `python -m …` in tables and sentences; a name alone is a mention of the command."""
    for span in spans(page):
        if "…" in span or not re.match(r"(contrail|make|(\S*/)?python -m) ", span):
            continue
        for words in split_commands(span):
            check(words, mentioned=True)


def test_commands_of_containers() -> None:
    """The `command:` of each container on the Kubernetes page."""
    pods = [yaml.safe_load(block.text) for block in blocks("yaml") if "containers:" in block.text]
    found = [container["command"] for pod in pods for container in pod["containers"]]
    assert len(found) == 3
    for words in found:
        check([str(word) for word in words])


@pytest.mark.parametrize(
    "line",
    [
        "contrail up --no-such-option",
        "contrail fly",
        "contrail settings sett own_weight 4",
        "contrail up --policy dice",
        "contrail replay at",
        "make coffee",
        "python -m bench.nothing",
        "pip install -e '.[nothing]'",
        "cotnrail up",
    ],
)
def test_wrong_commands_are_found(line: str) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        for words in split_commands(line):
            check(words)

"""The renderer: a pipe gets plain lines, each as wide as it is; a terminal gets its width, and colours."""

from __future__ import annotations

import click

from api.cli.renderer import COLOURS, OK, PROBLEM, WARNING, Block, Command, Facts, Mark, Notes, Table, render

TABLE = Table(
    ("", "check", "seconds", "what was found"),
    [
        (Mark("ok", OK), "broker", "1", "NATS answers."),
        (Mark("PROBLEM", PROBLEM), "registry", "12", "etcd has no leader: wait until most of its members are back."),
    ],
    "<<><",
    indent="  ",
)


def test_a_pipe_gets_one_line_per_row() -> None:
    """Columns are as wide as their widest cell; numbers stand at the right; no line ends in spaces."""
    assert render([TABLE, "", Table((), [("jobs", "3")], "<>")]).splitlines() == [
        "           check     seconds  what was found",
        "  ok       broker          1  NATS answers.",
        "  PROBLEM  registry       12  etcd has no leader: wait until most of its members are back.",
        "",
        "jobs  3",
    ]


def test_a_table_without_rows_is_its_heads() -> None:
    """And nothing, without heads."""
    assert render([Table(("a", "b"), [], "<<")]) == "a  b"
    assert render([Table((), [], "")]) == ""


def test_a_terminal_gets_its_width() -> None:
    """The widest column is wrapped; its further lines stand below the first."""
    assert render([TABLE], 60).splitlines() == [
        "           check     seconds  what was found",
        "  ok       broker          1  NATS answers.",
        "  PROBLEM  registry       12  etcd has no leader: wait until",
        "                              most of its members are back.",
    ]


def test_words_and_figures_are_never_broken() -> None:
    """A table that cannot be narrow enough stays as wide as they are; texts are not wrapped to less than 16."""
    lines = render([TABLE], 10).splitlines()
    assert max(map(len, lines)) == len("  PROBLEM  registry  seconds  its members are")
    assert {word for line in lines for word in line.split()} >= {"registry", "PROBLEM", "seconds", "answers."}

    figures = Table(("time to first token", "p99"), [("1,448 ms", "3 with 123 blocks")], ">>")
    assert render([figures], 10).splitlines() == [
        " time to                p99",
        "   first",
        "   token",
        "1,448 ms  3 with 123 blocks",
    ]


def test_lines_facts_and_notes_are_wrapped_below_their_beginning() -> None:
    """Notes in a pipe, too; a command is never broken."""
    text: list[Block] = [
        "  a line of several words",
        Facts([("why", "it is the cheapest"), ("", "of all")], 9),
        Notes("Rests on:", ["the record, and " * 10]),
        Command("contrail explain req-0123456789abcdef --log incident.contrail"),
    ]
    assert render(text, 22).splitlines() == [
        "  a line of several",
        "    words",
        "  why      it is the",
        "           cheapest",
        "           of all",
        "Rests on:",
        "- the record, and the",
        *["  record, and the"] * 8,
        "  record, and",
        "contrail explain req-0123456789abcdef --log incident.contrail",
    ]
    piped = render(text).splitlines()
    assert piped[:3] == ["  a line of several words", "  why      it is the cheapest", "           of all"]
    assert [len(line) for line in piped[4:6]] == [109, 53]
    assert len(piped) == 7


def test_marks_have_colours_on_a_terminal_alone() -> None:
    """A wrapped line has its colour on each line, and a coloured cell is as wide as its text."""
    line = Mark("warning: two words", WARNING)
    assert render([line]) == line.text
    assert render([line], 10, coloured=True).splitlines() == [
        click.style("warning:", fg=COLOURS[WARNING]),
        click.style("  two", fg=COLOURS[WARNING]),
        click.style("  words", fg=COLOURS[WARNING]),
    ]
    coloured = render([TABLE], 200, coloured=True)
    assert click.style("PROBLEM", fg="red") in coloured
    assert click.style("ok", fg="green") in coloured
    assert click.unstyle(coloured) == render([TABLE])

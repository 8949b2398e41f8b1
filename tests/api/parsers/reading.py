"""Text in pieces through an output parser, and the message that comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from api.parsers.output_parser import OutputParser


class Message(NamedTuple):
    """A whole answer, ids left out: they are random."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    called: bool = False


def read(parser: OutputParser, pieces: Sequence[str]) -> Message:
    """What the pieces say together. Fails if a call's name does not come once, first, and with an id."""
    text = reasoning = ""
    calls: list[tuple[str, str]] = []
    ids: set[str] = set()
    for said in [*[parser.push(piece, ()) for piece in pieces], parser.finish()]:
        text += said.text
        reasoning += said.reasoning
        for delta in said.tools:
            assert bool(delta.name) == bool(delta.id) == (delta.call == len(calls))
            if delta.name:
                ids.add(delta.id)
                calls.append((delta.name, ""))
            name, arguments = calls[delta.call]
            calls[delta.call] = (name, arguments + delta.arguments)
    assert len(ids) == len(calls)
    return Message(text, reasoning, tuple(calls), parser.called)


@st.composite
def cut(draw: st.DrawFn, pieces: Sequence[str]) -> list[str]:
    """A text put together of some of these, and cut anywhere."""
    text = "".join(draw(st.lists(st.sampled_from(pieces), max_size=14)))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

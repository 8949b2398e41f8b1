"""What a client has of an answer, and what another worker is asked for behind it."""

from __future__ import annotations

import msgspec
import pytest

from actors.told import Told
from core.generation import Output
from core.prompt import tokens_from_bytes
from tests.actors.world import request


def test_the_rest_is_asked_for_behind_what_was_told() -> None:
    """Prompt and answer so far are the next prompt; what was told counts against both bounds of the answer."""
    asked = request([1, 2, 3], max_tokens=10)
    asked = msgspec.structs.replace(asked, sampling=msgspec.structs.replace(asked.sampling, min_tokens=3))
    told = Told(asked)
    assert told.rest() is asked
    told.tell(Output(tokens=(7, 8)))
    rest = told.rest()
    assert tokens_from_bytes(rest.tokens) == [1, 2, 3, 7, 8]
    assert (rest.sampling.max_tokens, rest.sampling.min_tokens) == (8, 1)
    told.tell(Output(tokens=(9, 9)))
    assert told.rest().sampling.min_tokens == 0
    assert not told.complete
    told.tell(Output(tokens=(1,) * 6))
    assert told.complete


def test_what_came_from_a_cache_is_told_once() -> None:
    """The second worker finds the answer so far in no cache of the client's concern."""
    told = Told(request([1]))
    assert told.tell(Output(tokens=(2,), cached_tokens=16)).cached_tokens == 16
    again = told.tell(Output(tokens=(3,), cached_tokens=32))
    assert (again.tokens, again.cached_tokens) == ((3,), None)


@pytest.mark.parametrize(
    ("sampling", "resumable"),
    [
        ({}, True),
        ({"temperature": 1.0}, True),
        ({"seed": 3, "temperature": 0.0}, True),
        ({"repetition_penalty": 1.3}, True),  # counts the prompt as well
        ({"seed": 3, "temperature": 0.5}, False),
        ({"presence_penalty": 0.1}, False),
        ({"frequency_penalty": 0.1}, False),
    ],
)
def test_only_what_its_tokens_say_goes_on_elsewhere(sampling: dict[str, float], resumable: bool) -> None:
    """A seed's random numbers and counts of the answer's own tokens stay with the worker that had them."""
    asked = request([1])
    told = Told(msgspec.structs.replace(asked, sampling=msgspec.structs.replace(asked.sampling, **sampling)))
    assert told.resumable is resumable

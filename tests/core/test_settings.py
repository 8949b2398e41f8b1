"""Routing settings: one way in, one way out, and an error that says what to change."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import CallerError
from core.settings import COUNT_MAX, POLICIES, RoutingSettings

thousandths = st.integers(0, 1_000_000)
FIELDS = {
    name: thousandths if name.endswith("_m") else st.integers(1, COUNT_MAX)
    for name in RoutingSettings.__struct_fields__
    if name != "policy"
}


@settings(deadline=None, max_examples=100)
@given(st.builds(RoutingSettings, policy=st.sampled_from(POLICIES), **FIELDS))
def test_settings_read_back_as_they_were_written(given_: RoutingSettings) -> None:
    """parse(to_mapping()) == self, also by way of the log's msgpack and the registry's JSON."""
    mapping = given_.to_mapping()
    assert RoutingSettings.parse(mapping) == given_
    assert RoutingSettings.parse(msgspec.json.decode(msgspec.json.encode(mapping))) == given_
    assert RoutingSettings.parse(msgspec.msgpack.decode(msgspec.msgpack.encode(mapping))) == given_


def test_what_is_not_given_keeps_its_default() -> None:
    """An empty mapping is the default; a number with a point and one without are the same."""
    assert RoutingSettings.parse({}) == RoutingSettings()
    assert RoutingSettings.parse({"decode_weight": 2}) == RoutingSettings.parse({"decode_weight": 2.0})
    assert RoutingSettings.parse({"decode_weight": 0.25}).decode_weight_m == 250


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("prefil_weight", 1, r"no such setting; did you mean prefill_weight\?"),
        ("colour", 1, "no such setting; there are .*prefill_weight"),
        ("prefill_weight_m", 1, "no such setting"),
        ("policy", "fastest", "'fastest' is none of kv, round-robin, random, least-loaded"),
        ("policy", ["kv"], "is none of kv"),
        ("decode_weight", "much", "'much' is not a number"),
        ("decode_weight", True, "True is not a number"),
        ("decode_weight", None, "None is not a number"),
        ("decode_weight", -0.1, "-0.1 is not between 0 and 1000"),
        ("decode_weight", math.nan, "nan is not between 0 and 1000"),
        ("decode_weight", math.inf, "inf is not between 0 and 1000"),
        ("waiting_max", 0, "0 is not a whole number between 1 and"),
        ("waiting_max", 1.5, "1.5 is not a whole number"),
        ("waiting_max", math.inf, "inf is not a whole number"),
        ("waiting_max", math.nan, "nan is not a whole number"),
        ("candidates_recorded_max", 10**30, "is not a whole number between 1 and"),
    ],
)
def test_an_error_names_the_key_and_what_it_may_be(key: str, value: object, text: str) -> None:
    """CallerError, whatever was given."""
    with pytest.raises(CallerError, match=rf"^routing\.{key}: .*{text}"):
        RoutingSettings.parse({key: value})

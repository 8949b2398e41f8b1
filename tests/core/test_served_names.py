"""Which model a request means by a name."""

from __future__ import annotations

import pytest

from core.served_names import NAME_LENGTH_MAX, NAMED_MAX, NAMES_MAX, ServedNames, check_names, listed

CLAIMS = {
    "b": ("fast", "claude-*", "claude-haiku-*", "shared", "a"),
    "a": ("slow", "shared", "claude-haiku-4", "claude-*"),
}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("a", "a"),
        ("b", "b"),
        ("fast", "b"),
        ("slow", "a"),
        ("shared", "a"),
        ("claude-haiku-4", "a"),
        ("claude-haiku-4-5", "b"),
        ("claude-opus", "a"),
        ("claude-", "a"),
        ("claude", None),
        ("claude-*", "a"),
        ("", None),
    ],
)
def test_one_model_has_a_name(name: str, model: str | None) -> None:
    """Own before further, plain before pattern, longest pattern first, and of two models the first by name."""
    assert ServedNames.of(CLAIMS).model_of(name) == model
    assert ServedNames.of(dict(reversed(CLAIMS.items()))).model_of(name) == model


def test_what_can_be_asked_for_is_listed() -> None:
    """Each model's further names in their order, without those that another model has."""
    names = ServedNames.of(CLAIMS)
    assert names.further == {"a": ("slow", "shared", "claude-haiku-4"), "b": ("fast",)}
    assert list(names.all()) == [
        "a", "b", "claude-haiku-4", "fast", "shared", "slow", "claude-*", "claude-haiku-*",
    ]  # fmt: skip
    assert ServedNames.of({"a": ("*",)}).model_of("whatever") == "a"
    assert ServedNames().model_of("a") is None


def test_a_refusal_lists_some() -> None:
    """At most NAMED_MAX."""
    assert listed([]) == "none yet"
    assert listed("ab") == "a, b"
    assert listed(map(str, range(NAMED_MAX))).count(",") == NAMED_MAX - 1
    assert listed(map(str, range(NAMED_MAX + 1))).endswith(f", {NAMED_MAX - 1}, …")


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        ((), "at least one"),
        (("a*",), "the model's own"),
        (("*",), "the model's own"),
        (("a", "b*c"), "at the end of a name only"),
        (("a", "b**"), "at the end of a name only"),
        (("a", ""), "printable"),
        (("a", "b\n"), "printable"),
        (("a", "b" * (NAME_LENGTH_MAX + 1)), "printable"),
        (("a", "b", "a"), "twice"),
        (tuple(map(str, range(NAMES_MAX + 2))), "too many"),
    ],
)
def test_what_is_no_name_is_said(names: tuple[str, ...], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        check_names(names)


def test_what_may_be_a_name() -> None:
    """Those of the hub, catch-alls, and as many as there may be."""
    check_names(("org/Model-7B.v2", "claude-*", "*", "b" * NAME_LENGTH_MAX))
    check_names(tuple(map(str, range(NAMES_MAX + 1))))

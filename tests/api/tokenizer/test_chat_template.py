"""Chat templates."""

from __future__ import annotations

import pytest

from api.server.errors import ApiError
from api.tokenizer.chat_template import ChatTemplate
from core.errors import Corrupt

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source: str, *contents: str) -> str:
    return ChatTemplate(source, SPECIAL).render([{"role": "user", "content": content} for content in contents])


def test_blocks_are_trimmed_and_special_tokens_known() -> None:
    """Lines of tags leave neither line ends nor indentation."""
    source = "{{ bos_token }}\n{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\n"
    assert render(source, "a", "b") == "<s>\na\nb\n"


def test_json_is_not_escaped_for_html() -> None:
    """`tojson` writes what a model was trained on."""
    assert render("{{ messages[0] | tojson }}", "<ü & 'x'>") == '{"role": "user", "content": "<ü & \'x\'>"}'


def test_today_is_not_part_of_a_prompt() -> None:
    """A template that asks for the date finds that there is none, and training marks stand for nothing."""
    source = "{% if strftime_now is defined %}date{% endif %}{% generation %}x{% endgeneration %}{% break %}"
    assert render("{% for m in messages %}" + source + "{% endfor %}", "a", "b") == "x"


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('roles must alternate') }}", "{{ messages.append(1) }}", "{{ ''.__class__.mro() }}"]
)
def test_a_template_refuses_and_cannot_break_out(source: str) -> None:
    """What a template refuses or may not do is the caller's 400, never more."""
    with pytest.raises(ApiError) as caught:
        render(source, "a")
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_a_template_that_does_not_compile_is_corrupt() -> None:
    """It is the model's fault, and said when it is loaded."""
    with pytest.raises(Corrupt, match="does not compile"):
        ChatTemplate("{% if %}", SPECIAL)

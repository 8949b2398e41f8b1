"""Chat templates: a chat's messages to a prompt's text, as transformers renders them and vLLM's server hands them on.

The environment is sandboxed and immutable, blocks are trimmed, `tojson` escapes no HTML. `strftime_now` is not
there: a prompt with today's date in it would be another prompt tomorrow, and templates ask whether it is defined.

Bounded are the rendered text (RENDERED_CHARS_MAX, counted while it is made) and each range (jinja's MAX_RANGE). Not
bounded are a template's own loops within loops, and text that it multiplies before any leaves: a template is the
model's, chosen by who runs it, and a request brings none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from api.openai.types.request_types import CalledFunction, ChatMessage, ChatRequest, Part, Tool, ToolCall
from api.server.errors import bad_parameter, not_supported
from api.server.json_limits import check_json_size
from api.tokenizer.detokenizer import replace_lone_surrogates
from api.tokenizer.template_traits import reads_parts, takes_system_anywhere
from core.errors import Corrupt

RENDERED_CHARS_MAX = 64 * 1024 * 1024
"""Longest prompt's text; several times what a body of the largest size becomes."""
CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
"""Stands for the end of a message that is to be continued, while the template runs; the same as transformers'."""


class _GenerationTag(Extension):
    """`{% generation %}` marks an assistant's text for training; here its body stands as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own contract for extensions

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class ChatTemplate:
    """A model's chat template, compiled; Corrupt if it does not compile."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], tool_source: str | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except TemplateError as error:
            raise Corrupt(f"the model's chat template does not compile: {error}") from error
        # every rendering goes through them, and jinja's own chain of two makes that take twice as long
        self._template.globals = dict(self._template.globals)
        self._names = {**self._template.globals, **special_tokens}
        """Variables of every rendering."""
        self.wants_parts = reads_parts(tree)
        """True if the template goes through a message's content part by part, instead of taking it as text."""
        self.knows_developer = '"developer"' in source or "'developer'" in source
        """True if the template has the role `developer`."""
        self.takes_system_anywhere = takes_system_anywhere(self.render, parts=self.wants_parts)
        """True if a system message may stand between others, and is written there."""
        self.with_tools = None if tool_source is None else ChatTemplate(tool_source, special_tokens)
        """The template for requests with tools, if the model has two templates."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, up to where the assistant speaks; ApiError if the template refuses these messages.

        `variables` are its own, such as `enable_thinking`; what it does not know it ignores.
        """
        named = {
            **self._names,
            **(variables or {}),
            "messages": list(messages),
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            # as `generate` does, which beside that only makes tracebacks of templates readable
            return _bounded(self._template.root_render_func(self._template.new_context(named, shared=True)))
        # a template's expressions raise Python's errors for values of a request
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise bad_parameter("messages", f"the model's chat template refuses them: {error}") from error
        except RecursionError as error:
            raise bad_parameter("messages", "they are nested too deeply for the model's chat template") from error


def _bounded(pieces: Any) -> str:
    rendered: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > RENDERED_CHARS_MAX:
            raise ValueError(f"they become a prompt of more than {RENDERED_CHARS_MAX} characters")
        rendered.append(piece)
    return "".join(rendered)


ROLES = ("system", "developer", "user", "assistant", "tool")
FUNCTION = "function"
"""The deprecated role of a tool's result."""
SPEAKERS = ("system", "user")
"""Roles with messages that are mostly text alone."""
TEXT_PARTS = ("text", "input_text", "output_text")
VARIABLES_MAX = 64
"""Entries of chat_template_kwargs."""
VARIABLES_BYTES_MAX = 64 * 1024
"""Of all of them as JSON."""
RESERVED = ("messages", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt")
"""Variables that a request may not set through chat_template_kwargs: they have fields of their own, or none."""

Message = dict[str, Any]


def _check_message(place: str, message: ChatMessage) -> None:
    if message.role not in ROLES:
        raise bad_parameter(f"{place}.role", f"must be one of {', '.join(ROLES)}")
    # an assistant's answer may be thoughts, calls or a refusal alone
    if message.content is None and message.role != "assistant":
        raise bad_parameter(f"{place}.content", "must be a string or a list of text parts")
    for index, call in enumerate(message.tool_calls or ()):
        if call.type != "function":
            raise bad_parameter(f"{place}.tool_calls[{index}].type", f"must be 'function', not {call.type!r}")
    if isinstance(message.content, list):
        for index, part in enumerate(message.content):
            _check_part(f"{place}.content[{index}]", part)


def _check_part(place: str, part: Part) -> None:
    if part.type not in (*TEXT_PARTS, "refusal"):
        raise not_supported(place, f"{place}: content of type {part.type!r}")
    if _text_of(part) is None:
        raise bad_parameter(f"{place}.{'refusal' if part.type == 'refusal' else 'text'}", "is required")


def _text_of(part: Part) -> str | None:
    return part.refusal if part.type == "refusal" else part.text


def render(request: ChatRequest, template: ChatTemplate) -> str:
    """The prompt's text; ApiError if messages or variables are not what a template is given, or it refuses them."""
    if request.tools and template.with_tools is not None:
        template = template.with_tools
    continued = bool(request.continue_final_message)
    if continued and request.add_generation_prompt:
        raise bad_parameter("continue_final_message", "cannot be given with add_generation_prompt")
    messages = messages_of(request.messages, template)
    if continued:
        _mark_end(messages[-1])
    text = template.render(
        messages,
        tools=None if request.tools is None else [_tool(tool) for tool in request.tools],
        documents=request.documents,
        add_generation_prompt=request.add_generation_prompt is not False and not continued,
        variables=_variables(request) if request.chat_template_kwargs or request.reasoning_effort is not None else {},
    )
    return _up_to_mark(text) if continued else text


def messages_of(messages: Sequence[ChatMessage], template: ChatTemplate) -> list[Message]:
    """A template's messages: content as text or as parts, arguments of calls as objects. ApiError, with the place of
    what no template is given."""
    if not messages:
        raise bad_parameter("messages", "must hold at least one message")
    shown: list[Message] = []
    parts, developers, inner, called = template.wants_parts, False, False, ""
    for index, sent in enumerate(messages):
        role, content = sent.role, sent.content
        inner = inner or (role == "system" and index > 0)
        if role in SPEAKERS and type(content) is str and sent.tool_calls is None and sent.function_call is None:
            # nearly all: as `_message`, which would take them apart first
            plain: Message = {"role": role, "content": [{"type": "text", "text": content}] if parts else content}
            if sent.name is not None:
                plain["name"] = sent.name
            shown.append(plain)
            continue
        message = sent
        if role == FUNCTION or sent.function_call is not None:
            message, called = _with_tool_call(sent, f"call{index:05d}", called)
        _check_message(f"messages[{index}]", message)
        developers = developers or role == "developer"
        shown.append(_message(message, parts=parts))
    if developers and not template.knows_developer:
        return _as_system(shown, anywhere=template.takes_system_anywhere)
    return _system_first(shown) if inner and not template.takes_system_anywhere else shown


def _with_tool_call(message: ChatMessage, new_id: str, called: str) -> tuple[ChatMessage, str]:
    """A call or a result in OpenAI's deprecated form as that of a tool, and the id of the last such call."""
    if message.role == FUNCTION:
        return msgspec.structs.replace(message, role="tool", tool_call_id=called or None), called
    function = message.function_call
    assert function is not None
    return msgspec.structs.replace(message, tool_calls=[ToolCall(function=function, id=new_id)]), new_id


def _message(message: ChatMessage, *, parts: bool) -> Message:
    texts = _texts(message)
    # templates take a tool's answer as text, also if they take other contents as parts
    as_parts = parts and message.role != "tool"
    content = [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts)
    shown: Message = {"role": message.role, "content": content}
    if message.role == "assistant":
        shown |= _assistant_fields(message)
    elif message.role == "tool" and message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        shown["name"] = message.name
    return shown


def _texts(message: ChatMessage) -> list[str]:
    match message.content:
        case None:
            return [message.refusal] if message.refusal else []
        case str(text):
            return [text]
        case parts:
            return [_text_of(part) or "" for part in parts]


def _assistant_fields(message: ChatMessage) -> Message:
    """Fields that only an assistant's message has."""
    fields: Message = {}
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {"name": call.function.name, "arguments": _arguments(call.function)},
            }
            for call in message.tool_calls
        ]
    reasoning = message.reasoning if message.reasoning is not None else message.reasoning_content
    if reasoning is not None:
        fields |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return fields


def _arguments(function: CalledFunction) -> dict[str, Any]:
    """As an object. What is none becomes an empty one: it stands in the past, and would fail every later turn."""
    given = function.arguments
    if isinstance(given, str):
        check_json_size(given.encode("utf-8", "surrogatepass"))
        try:
            given = _decoded(given)
        except (ValueError, RecursionError):
            given = None
    return given if isinstance(given, dict) else {}


def _decoded(text: str) -> Any:
    """The value of the JSON text, in characters that a prompt can hold."""
    value = json.loads(text)
    # escapes alone can say others
    return json.loads(replace_lone_surrogates(json.dumps(value, ensure_ascii=False))) if "\\u" in text else value


def _as_system(messages: list[Message], *, anywhere: bool) -> list[Message]:
    """Developers as system: those at the start as one message there, others in their places, if they may be
    anywhere."""
    renamed = [message | {"role": "system"} if message["role"] == "developer" else message for message in messages]
    if not anywhere:
        return _system_first(renamed)
    leading = next((at for at, message in enumerate(renamed) if message["role"] != "system"), len(renamed))
    return _system_first(renamed[:leading]) + renamed[leading:]


def _system_first(messages: list[Message]) -> list[Message]:
    """All system messages as one at the start; the same if that is the only one."""
    systems = [message for message in messages if message["role"] == "system"]
    if not systems or (len(systems) == 1 and messages[0]["role"] == "system"):
        return messages
    texts = [text for message in systems if (text := _joined(message["content"]))]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _joined(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _tool(tool: Tool) -> dict[str, Any]:
    function = tool.function
    shown: dict[str, Any] = {
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
    }
    if function.strict is not None:
        shown["strict"] = function.strict
    return {"type": tool.type, "function": shown}


def _variables(request: ChatRequest) -> Mapping[str, Any]:
    given = request.chat_template_kwargs or {}
    if given:
        _check_variables(given)
    effort = request.reasoning_effort
    if effort is None:
        return given
    thinking = {} if "enable_thinking" in given else {"enable_thinking": effort != "none"}
    return {**given, **thinking, "reasoning_effort": effort}


def _check_variables(given: Mapping[str, Any]) -> None:
    if reserved := [name for name in given if name in RESERVED]:
        raise bad_parameter("chat_template_kwargs", f"must not hold {', '.join(reserved)}")
    if len(given) > VARIABLES_MAX or len(msgspec.json.encode(given)) > VARIABLES_BYTES_MAX:
        limit = f"{VARIABLES_MAX} entries, and {VARIABLES_BYTES_MAX} bytes"
        raise bad_parameter("chat_template_kwargs", f"must hold at most {limit}")


def _mark_end(last: Message) -> None:
    """The mark behind its text: what a template writes after that is cut off again."""
    content = last["content"]
    if not content:
        raise bad_parameter("continue_final_message", "needs text in the last message")
    if isinstance(content, str):
        last["content"] = content + CONTINUED
    else:
        content[-1] = content[-1] | {"text": content[-1]["text"] + CONTINUED}


def _up_to_mark(text: str) -> str:
    at = text.rfind(CONTINUED.strip())
    if at < 0:
        raise bad_parameter("continue_final_message", "the model's chat template does not write the last message")
    # a template that trims the message has trimmed the mark's own blank, and before it the message's end
    whole = text.startswith(CONTINUED, at)
    return text[:at] if whole else text[:at].rstrip()

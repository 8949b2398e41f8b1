"""The messages of a chat as a template sees them, as vLLM's server hands them on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from api.openai.requests.types import ChatRequest
from api.openai.templates.chat import CONTINUED, ChatTemplate
from api.openai.templates.messages import CalledFunction, ChatMessage, Part, Tool, ToolCall
from api.openai.text.surrogates import without_lone
from api.server.errors import bad_parameter, not_supported

ROLES = ("system", "developer", "user", "assistant", "tool")
FUNCTION = "function"
"""The deprecated role of a tool's result."""
SPEAKERS = ("system", "user")
"""Those whose messages are mostly nothing but text."""
TEXT_PARTS = ("text", "input_text", "output_text")
VARIABLES_MAX = 64
"""Entries of chat_template_kwargs."""
VARIABLES_BYTES_MAX = 64 * 1024
"""Of all of them as JSON."""
RESERVED = ("messages", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt")
"""What a request may not set through chat_template_kwargs: it has fields of its own, or none."""

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
    # templates take a tool's answer as text, whatever they do with others
    as_parts = parts and message.role != "tool"
    content = [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts)
    shown: Message = {"role": message.role, "content": content}
    if message.role == "assistant":
        shown |= _said(message)
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


def _said(message: ChatMessage) -> Message:
    """What only an assistant's message has."""
    said: Message = {}
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {"name": call.function.name, "arguments": _arguments(call.function)},
            }
            for call in message.tool_calls
        ]
    reasoning = message.reasoning if message.reasoning is not None else message.reasoning_content
    if reasoning is not None:
        said |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return said


def _arguments(function: CalledFunction) -> dict[str, Any]:
    """As an object. What is none becomes an empty one: it stands in the past, and would fail every later turn."""
    given = function.arguments
    if isinstance(given, str):
        try:
            given = _decoded(given)
        except (ValueError, RecursionError):
            given = None
    return given if isinstance(given, dict) else {}


def _decoded(text: str) -> Any:
    """What the JSON text says, in characters that a prompt can hold."""
    value = json.loads(text)
    # escapes alone can say others
    return json.loads(without_lone(json.dumps(value, ensure_ascii=False))) if "\\u" in text else value


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

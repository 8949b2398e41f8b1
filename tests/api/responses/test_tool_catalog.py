"""Tools of /v1/responses beyond functions: namespaces, custom tools, hosted tools, and choices among them."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest
from openai.types.responses import ResponseStreamEvent

from api.openai.generation_route import LEFT_OUT_MAX
from api.parsers.tool_choice import NAME
from api.responses.output_items import CustomToolInput
from api.responses.responses_types import ResponsesRequest, ResponsesTool
from api.responses.tool_catalog import ToolCatalog, flat_name
from tests.api.conftest import Api
from tests.api.responses.test_responses import PATH, WEATHER, sent, stream_events
from tests.api.scripted import spoken
from tests.api.speaking import speak

LEFT_OUT = "x-contrail-left-out-tools"
SPAWN: Any = {
    "type": "namespace",
    "name": "agents",
    "description": "of the session",
    "tools": [
        {"type": "function", "name": "spawn", "description": "one more", "strict": False, "parameters": {}},
        {"type": "custom", "name": "note", "description": "freely"},
    ],
}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "changes files",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
}
FREE: Any = {"type": "custom", "name": "run", "description": "a program"}
DIFF = 'a\n"b"\t\\d {"c": \N{GRINNING FACE}}'


def call_of(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


async def asked(api: Api, **fields: Any) -> httpx.Response:
    answer = await api.http.post(PATH, json={"model": "tiny", "input": "hi", **fields})
    assert answer.status_code == 200, answer.text
    return answer


def ended(events: list[ResponseStreamEvent]) -> Any:
    last = events[-1]
    assert last.type == "response.completed"
    return last.response


async def test_a_namespaces_tools_are_flattened_and_mapped_back(api: Api) -> None:
    """The model sees `<namespace>__<name>`, the client its own name and the namespace, whole and streamed."""
    speak(api.backend)
    api.backend.script = spoken("</think>", call_of("agents__spawn", '{"a": 1}'))
    whole: Any = await api.client.responses.create(model="tiny", input="hi", tools=[WEATHER, SPAWN])
    events = await stream_events(api, tools=[WEATHER, SPAWN])
    assert "<tool weather><tool agents__spawn><tool agents__note>" in sent(api)
    for response in (whole, ended(events)):
        call = response.output[0]
        assert (call.type, call.name, call.namespace, call.arguments) == (
            "function_call",
            "spawn",
            "agents",
            '{"a": 1}',
        )
        assert [tool.type for tool in response.tools] == ["function", "namespace"]
    done = [it for it in events if it.type == "response.function_call_arguments.done"]
    assert [it.to_dict()["name"] for it in done] == ["spawn"]


async def test_a_namespaced_call_comes_back_under_its_flattened_name(api: Api) -> None:
    """Also of a tool that is not offered any more: its past calls read as they did."""
    speak(api.backend)
    for tools in ([SPAWN], [WEATHER]):
        given = [
            {"role": "user", "content": "hi"},
            {"type": "function_call", "call_id": "c1", "name": "spawn", "namespace": "agents", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "up"}]},
        ]
        await asked(api, input=given, tools=tools)
        assert '<call c1 agents__spawn {"a": 1}>' in sent(api)
        assert "up<of c1>" in sent(api)


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "agents__spawn"}, "agents__spawn"),
        ({"type": "function", "name": "spawn"}, "agents__spawn"),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, "agents__spawn"),
        ({"type": "custom", "name": "run"}, "run"),
        ({"type": "function", "name": "weather"}, "weather"),
    ],
)
async def test_one_tool_is_chosen(api: Api, choice: Any, name: str) -> None:
    """By its own name, or by the flattened one; the engine is held to that tool's arguments."""
    speak(api.backend)
    api.backend.script = spoken("</think>", '{"input": "x"}')
    answer = (await asked(api, tools=[WEATHER, SPAWN, FREE], tool_choice=choice)).json()
    shown = answer["output"][-1]
    assert name in {shown["name"], f"{shown.get('namespace')}__{shown['name']}"}
    assert answer["tool_choice"] == choice
    assert api.backend.requests[-1].sampling.guided


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"type": "function", "name": "spawn"}, "several namespaces"),
        ({"type": "function", "name": "gone"}, "not among the tools"),
        ({"type": "web_search"}, "'web_search'"),
        ({"type": "allowed_tools", "mode": "any", "tools": []}, "'auto' or 'required'"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "gone"}]}, "not among"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}, "only with tools"),
    ],
)
async def test_a_choice_that_cannot_be_is_refused(api: Api, choice: Any, text: str) -> None:
    """It says why."""
    other = {**SPAWN, "name": "others"}
    fields = {"tools": [SPAWN, other, {"type": "web_search"}], "tool_choice": choice}
    answer = await api.http.post(PATH, json={"model": "tiny", "input": "hi", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"].split(".")[0]) == (400, "tool_choice")
    assert text in error["message"]


@pytest.mark.parametrize(
    ("allowed", "prompt"),
    [
        ([{"type": "function", "name": "spawn"}], "<tool agents__spawn>"),
        ([{"type": "namespace", "name": "agents"}], "<tool agents__spawn><tool agents__note>"),
        ([{"type": "function", "name": "weather"}, {"type": "web_search"}], "<tool weather>"),
        ([], ""),
    ],
)
async def test_allowed_tools_restrict_the_offer(api: Api, allowed: Any, prompt: str) -> None:
    """What is not among them is not offered at all."""
    speak(api.backend)
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    answer = await asked(api, tools=[WEATHER, SPAWN], tool_choice=choice)
    assert sent(api).startswith(f"{prompt}<|user|>")
    assert answer.json()["tool_choice"] == choice


async def test_hosted_tools_are_left_out_and_named(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """In a header, whole and streamed, and in one line of the log, which holds types alone."""
    speak(api.backend)
    api.backend.script = spoken("</think>", "so")
    tools = [
        {"type": "web_search", "search_context_size": "low"}, {"type": "web_search_preview_2025_03_11"},
        {"type": "local_shell"}, {"type": "mcp", "server_label": "x", "server_url": "y"}, WEATHER, PATCH,
        {"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "file_search", "vector_store_ids": []},
        {"type": "image_generation"}, {"type": "computer_use_preview", "display_width": 1},
    ]  # fmt: skip
    given = [
        {"role": "user", "content": "hi"},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "secret"}},
        {"type": "local_shell_call", "id": "l", "call_id": "c", "action": {"type": "exec"}, "status": "completed"},
        {"type": "local_shell_call_output", "id": "l", "output": "secret"},
        {"type": "computer_call_output", "call_id": "d", "output": {"type": "computer_screenshot"}},
    ]
    kinds = (
        "web_search, web_search_preview_2025_03_11, local_shell, mcp, custom:apply_patch grammar, code_interpreter, "
        "file_search, image_generation, computer_use_preview, web_search_call, local_shell_call, "
        "local_shell_call_output, computer_call_output"
    )
    with caplog.at_level(logging.INFO, logger="api.openai.generation_route"):
        for stream in (False, True):
            answer = await asked(api, tools=tools, input=given, stream=stream)
            assert answer.headers[LEFT_OUT] == kinds
    assert sent(api) == "<tool weather><tool apply_patch><|user|>hi<|end|><|assistant|>"
    lines = [record for record in caplog.records if record.name == "api.openai.generation_route"]
    assert len(lines) == 2
    assert getattr(lines[-1], "request_id") == answer.headers["x-request-id"]  # noqa: B009 - logging's extra
    assert "web_search" in lines[0].getMessage()
    assert "custom grammar" in lines[0].getMessage()
    assert not any(word in lines[0].getMessage() for word in ("secret", "apply_patch"))


async def test_nothing_is_said_where_nothing_is_left_out(api: Api) -> None:
    """No header then; and the header is bounded."""
    assert LEFT_OUT not in (await asked(api)).headers
    customs = [{**PATCH, "name": f"patch{n}"} for n in range(LEFT_OUT_MAX)]
    speak(api.backend)
    api.backend.script = spoken("</think>")
    assert len((await asked(api, tools=customs)).headers[LEFT_OUT].split(", ")) == LEFT_OUT_MAX
    named = (await asked(api, tools=[*customs, {"type": "web_search"}])).headers[LEFT_OUT].split(", ")
    assert (len(named), named[-1]) == (LEFT_OUT_MAX, "2 more")


async def test_hosted_tools_alone_are_as_none(api: Api) -> None:
    """With the choice that clients send without being asked; a call that must be made cannot be."""
    answer = await asked(api, tools=[{"type": "web_search"}], tool_choice="auto")
    assert answer.json()["tools"] == [{"type": "web_search"}]
    body = {"model": "tiny", "input": "hi", "tools": [{"type": "web_search"}], "tool_choice": "required"}
    assert (await api.http.post(PATH, json=body)).json()["error"]["param"] == "tool_choice"


@pytest.mark.parametrize("tool", [FREE, PATCH])
async def test_a_custom_tool_is_called_with_text(api: Api, tool: Any) -> None:
    """Its deltas are the text unescaped, and add up; a grammar is told to the model, though it holds nobody to it."""
    speak(api.backend)
    arguments = json.dumps({"input": DIFF})
    api.backend.script = spoken("</think>", *f'<tool_call>{{"name": "{tool["name"]}", "arguments": ', *arguments, "}")
    api.backend.script = [*api.backend.script[:-1], *spoken("</tool_call>")[1:]]
    whole: Any = await api.client.responses.create(model="tiny", input="hi", tools=[tool])
    events = await stream_events(api, tools=[tool])
    for response in (whole, ended(events)):
        call = response.output[0]
        assert (call.type, call.name, call.input) == ("custom_tool_call", tool["name"], DIFF)
        assert call.call_id
        assert call.status == "completed"
    deltas = [it.delta for it in events if it.type == "response.custom_tool_call_input.delta"]
    assert len(deltas) > 5
    assert "".join(deltas) == DIFF
    assert [it.input for it in events if it.type == "response.custom_tool_call_input.done"] == [DIFF]
    added = next(it.item for it in events if it.type == "response.output_item.added")
    assert added.to_dict()["input"] == ""


async def test_a_custom_call_comes_back(api: Api) -> None:
    """As the call of the function that stood for it, and its output as that one's."""
    speak(api.backend)
    given = [
        {"role": "user", "content": "hi"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "run", "input": 'print("x")', "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "x"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "note", "namespace": "agents", "input": "y"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "kept"}]},
    ]
    await asked(api, input=given, tools=[FREE, SPAWN])
    assert '<call c1 run {"input": "print(\\"x\\")"}>' in sent(api)
    assert "x<of c1>" in sent(api)
    assert '<call c2 agents__note {"input": "y"}>' in sent(api)
    assert "kept<of c2>" in sent(api)


async def test_tools_in_the_input_are_offered_too(api: Api) -> None:
    """Some clients send them as an item; one that is there already is the same tool."""
    speak(api.backend)
    given: list[dict[str, Any]] = [
        {"type": "additional_tools", "role": "developer", "tools": [SPAWN, WEATHER]},
        {"role": "user", "content": "hi"},
    ]
    await asked(api, input=given, tools=[WEATHER])
    assert sent(api).startswith("<tool weather><tool agents__spawn><tool agents__note><|user|>hi")
    given[0]["tools"] = [{"name": "x"}]
    answer = await api.http.post(PATH, json={"model": "tiny", "input": given})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0].tools")


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"tools": [{"type": "teleport"}]}, "tools[0]", "'teleport'"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name", "is required"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name", "is required"),
        ({"tools": [{**SPAWN, "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name", "is required"),
        ({"tools": [{**SPAWN, "tools": [SPAWN]}]}, "tools[0].tools[0]", "'namespace'"),
        ({"tools": [{"type": "web_search"}, {"type": "function", "name": "no name"}]}, "tools[1].name", "1 to 64"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "two of them"),
        ({"tools": [SPAWN, SPAWN]}, "tools", "two of them"),
        ({"input": [{"type": "teleport_call"}]}, "input[0]", "'teleport_call'"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": {}}]}, "input[0].output", "a string"),
    ],
)
async def test_a_tool_that_cannot_be_is_named(api: Api, fields: Any, param: str, text: str) -> None:
    """With its place in the body."""
    answer = await api.http.post(PATH, json={"model": "tiny", "input": "hi", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert text in error["message"]


LONG = "n" * 40


def catalog_of(*tools: ResponsesTool) -> ToolCatalog:
    return ToolCatalog(ResponsesRequest(model="tiny", input="hi", tools=list(tools)))


def names(*tools: ResponsesTool) -> list[str]:
    return [flat for flat, _ in catalog_of(*tools)]


def function(name: str) -> ResponsesTool:
    return ResponsesTool(type="function", name=name)


def namespace(name: str, *inner: str) -> ResponsesTool:
    return ResponsesTool(type="namespace", name=name, tools=[function(each) for each in inner])


def test_a_name_that_no_chat_takes_is_shortened() -> None:
    """Always to the same one; two of them stay two, and the longest that fits is left alone."""
    assert flat_name("a" * 30, "b" * 32) == "a" * 30 + "__" + "b" * 32
    first, second, odd = names(namespace(LONG, f"{LONG}1", f"{LONG}2"), namespace("a.b", "c/d"))
    assert first == flat_name(LONG, f"{LONG}1") != second
    assert all(NAME.fullmatch(name) for name in (first, second, odd))
    assert odd.startswith("a_b__c_d_")
    assert catalog_of(namespace(LONG, LONG)).chosen(f"{LONG}__{LONG}") == flat_name(LONG, LONG)
    assert catalog_of().flat_name(LONG, LONG) == flat_name(LONG, LONG)


def test_a_flattened_name_gives_way_to_a_name() -> None:
    """In whatever order they come; and to another flattened one."""
    for tools in ((function("a__b"), namespace("a", "b")), (namespace("a", "b"), function("a__b"))):
        catalog = catalog_of(*tools)
        assert len({flat for flat, _ in catalog}) == 2
        assert catalog.flat_name("a__b", None) == "a__b"
        other = catalog.get(catalog.flat_name("b", "a"))
        assert other
        assert (other.name, other.namespace) == ("b", "a")
    assert len(set(names(namespace("a", "b__c"), namespace("a__b", "c")))) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\nb\\u00e9\\ud83d\\ude00\\"\\\\"}', 'a\nb\u00e9\N{GRINNING FACE}"\\'),
        ('{ "input" :"a', "a"),
        ('{"input": "a\nb"}', "a\nb"),
        ('{"input": "\\d+\\u12"}', "\\d+\\u12"),
        ('{"input": "a\\ud83d"}', "a\ufffd"),
        ('{"input": "\\ud83dx\\ude00y\\ud83d\\n"}', "\ufffdx\ufffdy\ufffd\n"),
        ('{"input": ""}', ""),
        ('{"more": 1, "input": "late"}', "late"),
        ('{"other": "x"}', '{"other": "x"}'),
        ("*** Begin Patch", "*** Begin Patch"),
        ("[" * 100_000, "[" * 100_000),
        ("", ""),
    ],
)
def test_a_custom_input_grows_as_it_comes(arguments: str, text: str) -> None:
    """However the arguments are cut; what has been given never changes."""
    for size in (1, 3, len(arguments) or 1):
        reader = CustomToolInput()
        pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
        assert "".join([*map(reader.push, pieces), reader.finish()]) == text


async def test_a_custom_call_that_is_cut_short_is_incomplete(api: Api) -> None:
    """By its own status."""
    speak(api.backend)
    api.backend.script = spoken("</think>", '<tool_call>{"name": "run", "arguments": {"input": "a\\', finish="length")
    call = (await asked(api, tools=[FREE])).json()["output"][-1]
    assert (call["type"], call["status"]) == ("custom_tool_call", "incomplete")
    assert call["input"].startswith("a")

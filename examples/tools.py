"""A chat with a tool through LangChain and through LiteLLM, as an application would have it.

`pip install langchain-openai litellm mcp`, `contrail up -f examples/tools.yaml`, `python examples/tools.py [BASE_URL]`.
The built-in model babbles: the tool is called because it is required, with arguments that only have the right form.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm  # type: ignore[import-not-found]
import openai
from langchain_core.messages import HumanMessage, ToolMessage  # type: ignore[import-not-found]
from langchain_core.tools import tool  # type: ignore[import-not-found]
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
QUESTION = "What is the weather in Oslo?"
ANSWER_TOKENS_MAX = 80


def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"It rains in {city}."


def through_langchain(base_url: str, model: str) -> list[Any]:
    """The whole conversation: question, call, the tool's answer, the model's; and a streamed one."""
    chat = ChatOpenAI(
        base_url=base_url, api_key="none", model=model, temperature=0, max_completion_tokens=ANSWER_TOKENS_MAX
    )
    talk: list[Any] = [HumanMessage(QUESTION)]
    caller = chat.bind_tools([WEATHER], tool_choice="required", parallel_tool_calls=False)
    talk.append(caller.invoke(talk))
    calls = talk[-1].tool_calls
    talk += [ToolMessage(tool(get_weather).invoke(call["args"]), tool_call_id=call["id"]) for call in calls]
    talk.append(chat.invoke(talk))
    streamed = list(caller.stream(talk[:1]))
    whole = streamed[0]
    for chunk in streamed[1:]:
        whole += chunk
    assert whole.tool_calls == [{**talk[1].tool_calls[0], "id": whole.tool_calls[0]["id"]}], whole.tool_calls
    return talk


def through_litellm(base_url: str, model: str) -> list[Any]:
    """The same."""
    how = {
        "model": f"openai/{model}", "api_base": base_url, "api_key": "none", "temperature": 0,
        "max_tokens": ANSWER_TOKENS_MAX,
    }  # fmt: skip
    tools = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    talk: list[Any] = [{"role": "user", "content": QUESTION}]
    asked = litellm.completion(messages=talk, **tools, **how)
    talk.append(asked.choices[0].message.model_dump())
    for call in asked.choices[0].message.tool_calls:
        said = get_weather(**json.loads(call.function.arguments))
        talk.append({"role": "tool", "tool_call_id": call.id, "content": said})
    talk.append(litellm.completion(messages=talk, **how).choices[0].message.model_dump())
    chunks = list(litellm.completion(messages=talk[:1], stream=True, **tools, **how))
    whole = litellm.stream_chunk_builder(chunks)
    arguments = [each.choices[0].message.tool_calls[0].function.arguments for each in (asked, whole)]
    assert arguments[0] == arguments[1], arguments
    return talk


def main(base_url: str) -> None:
    """Both conversations are printed."""
    model = openai.OpenAI(base_url=base_url, api_key="none").models.list().data[0].id
    for name, talk in (("LangChain", through_langchain), ("LiteLLM", through_litellm)):
        print(f"--- {name}")
        for message in talk(base_url, model):
            print(message)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1")

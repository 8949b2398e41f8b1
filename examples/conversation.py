"""One conversation of five turns through the OpenAI client: from the second turn on, the prompt is cached.

Start a deployment with `make serve`, then run this with `.venv/bin/python examples/conversation.py [BASE_URL]`.
"""

from __future__ import annotations

import sys

from openai import APIError, OpenAI
from openai.types.chat import ChatCompletionMessageParam

QUESTIONS = ("Who are you?", "What do you keep?", "For how long?", "Who can read it?", "And then?")
ANSWER_TOKENS_MAX = 32


def main(base_url: str) -> None:
    """Each turn is printed with its request id, and how much of its prompt the worker had cached."""
    client = OpenAI(base_url=base_url, api_key="none")
    model = client.models.list().data[0].id
    messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": "You keep a log of everything. " * 20}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        raw = client.chat.completions.with_raw_response.create(
            model=model, messages=messages, max_tokens=ANSWER_TOKENS_MAX, temperature=0
        )
        answer = raw.parse()
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        usage = answer.usage
        cached = usage.prompt_tokens_details.cached_tokens if usage and usage.prompt_tokens_details else 0
        prompt = usage.prompt_tokens if usage else 0
        print(f"{raw.headers.get('x-request-id')}: {cached} of {prompt} prompt tokens cached")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit("usage: conversation.py [BASE_URL]")
    base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    try:
        main(base_url)
    except APIError as error:  # nobody answers there, or it refuses
        sys.exit(f"{base_url}: {error} (start one with `make serve`)")

"""The page of the API at /docs: whole, without scripts, and open."""

from __future__ import annotations

import json
import re
import shlex
from html import unescape
from pathlib import Path

from api.docs_page import ANY_HOST, EXAMPLE_MODEL, docs_page
from api.openapi import document
from tests.api.conftest import Api
from tests.api.guarded import Guarded, made
from tests.api.scripted import spoken


def commands(text: str) -> list[list[str]]:
    """The words of each command of the page."""
    return [shlex.split(unescape(found)) for found in re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)]


async def test_every_route_has_a_command_that_is_answered(api: Api) -> None:
    """With the address that the page was asked at, and a model that is served."""
    answer = await api.http.get("/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    asked = commands(answer.text)
    assert len(asked) == len([method for methods in document()["paths"].values() for method in methods])
    for words in asked:
        assert words[1].startswith(f"http://{api.server.address}/")
        if "/embeddings" in words[1]:
            continue  # the scripted model cannot embed
        api.backend.script = spoken("hello")
        body = json.loads(words[words.index("-d") + 1]) if "-d" in words else None
        answered = await api.http.request("GET" if body is None else "POST", words[1], json=body)
        assert answered.status_code == 200, (words, answered.text)


async def test_every_field_and_header_is_shown(api: Api) -> None:
    """Of each body and each operation, by their names."""
    text, described = (await api.http.get("/docs")).text, document()
    for methods in described["paths"].values():
        for operation in methods.values():
            part = text.partition(f'<details id="{operation["operationId"]}">')[2].partition("</details>")[0]
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            fields = [each["name"] for each in operation["parameters"]]
            if body is not None:
                fields += described["components"]["schemas"][body["schema"]["$ref"].rpartition("/")[2]]["properties"]
            assert [name for name in fields if f"<td>{name}</td>" not in part] == []


async def test_nothing_is_loaded_and_nothing_runs(api: Api) -> None:
    """The page has no script and no address of another host; the browser is forbidden both."""
    answer = await api.http.get("/docs")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"<(script|link|img|iframe)|\son\w+=|@import|url\(", answer.text)
    assert re.findall(r'href="([^"]*)"', answer.text) == ["/openapi.json"]
    assert (await api.http.head("/docs")).status_code == 200


async def test_with_keys_it_is_open_and_names_no_model(tmp_path: Path) -> None:
    """Its commands have a place for the key, but for routes that need none."""
    made(tmp_path / "keys")
    async with Guarded(tmp_path / "keys").served() as http:
        answer = await http.get("/docs")
    assert answer.status_code == 200
    assert "org/other" not in answer.text
    keyed = {
        words[1].partition("/")[2].partition("/")[2]: "Authorization: Bearer KEY" in words
        for words in commands(answer.text)
    }
    assert {path.partition("/")[2] for path, has in keyed.items() if not has} == {"health", "openapi.json"}


def test_hosts_and_models_stay_texts() -> None:
    """A header or a name with marks of HTML or of a shell changes neither page nor command."""
    text = docs_page("http", "a';rm -rf <i>", "it's <i>", keyed=False)
    assert "<i>" not in text
    assert "rm -rf" not in text
    chat = next(words for words in commands(text) if words[1].endswith("/v1/completions"))
    assert chat[1] == f"http://{ANY_HOST}/v1/completions"
    assert json.loads(chat[-1])["model"] == EXAMPLE_MODEL
    assert "http://[::1]:80/v1/models/org/model-8B" in docs_page("http", "[::1]:80", "org/model-8B", keyed=False)

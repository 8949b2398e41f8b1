"""The five programs, each with the settings that `docs/agents.md` names."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.agents import script
from tests.agents.program import Finished, Program, Target, Workplace
from tests.agents.script import SUMMARY, Call, Reply, calling, thinking

KEY = "none"
OUTPUT_MAX = 8192
"""Tokens of an answer, where a program asks how long that may be: it keeps so much of the context free."""


class ClaudeCode(Program):
    """Anthropic's, over /v1/messages."""

    name: ClassVar[str] = "claude"
    route: ClassVar[str] = "/v1/messages"

    def command(self, place: Workplace, target: Target, prompt: str) -> tuple[list[str], dict[str, str]]:
        program = str(self.installed / "node_modules" / ".bin" / "claude")
        output = ("--output-format", "stream-json", "--verbose", "--include-partial-messages")
        environment = {
            "ANTHROPIC_BASE_URL": target.url,
            "ANTHROPIC_AUTH_TOKEN": KEY,
            **(
                {"ANTHROPIC_MODEL": target.model, "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.model} if target.model else {}
            ),
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.context),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(OUTPUT_MAX),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }
        return [program, "-p", prompt, *output, "--allowedTools", "Bash,Read,Write,Edit"], environment

    def shell(self, command: str) -> Call:
        return Call("Bash", {"command": command, "description": "Run it"})

    def replies(self) -> list[Reply]:
        begin = Call("Agent", {"description": "See to it", "prompt": script.task("claude")})
        launched = {"when": "Async agent launched", "say": thinking("It works on it.", "I wait.")}
        search = Call("ToolSearch", {"query": "select:CronList", "max_results": 1})
        return [
            *script.delegation("claude", begin, [launched]),
            {"when": "[search]", "say": calling(search, "There is a tool for it.")},
            {"when": "<tool_response>\nCronList", "say": calling(Call("CronList", {}), "I have it now.")},
            {"when": "No scheduled jobs", "say": thinking("None.", script.SEARCHED)},
            {
                "when": "an <analysis> block followed by a <summary> block",
                "say": thinking("In short.", f"<summary>{SUMMARY}</summary>"),
            },
        ]

    def compacted(self, body: Any) -> bool:
        return "an <analysis> block followed by a <summary> block" in str(body["messages"][-1])

    def counting(self, body: Any) -> tuple[str, Any]:
        head = {"model": body["model"], "system": body["system"], "tools": body["tools"]}
        return "/v1/messages/count_tokens", {**head, "messages": [{"role": "user", "content": "[question]"}]}

    def pieces(self, finished: Finished) -> list[str]:
        return _text_deltas(finished)

    def text(self, finished: Finished) -> str:
        results = [line for line in finished.lines if line["type"] == "result"]
        return str(results[-1].get("result", "")) if results else ""


class Codex(Program):
    """OpenAI's, over /v1/responses."""

    name: ClassVar[str] = "codex"
    route: ClassVar[str] = "/v1/responses"
    says_full: ClassVar[str] = "ran out of room in the model's context window"

    def command(self, place: Workplace, target: Target, prompt: str) -> tuple[list[str], dict[str, str]]:
        program = str(self.installed / "node_modules" / ".bin" / "codex")
        place.write(
            ".codex/config.toml",
            f'model = "{target.model}"\n'
            'model_provider = "contrail"\n'
            f"model_context_window = {target.context}\n"
            "check_for_update_on_startup = false\n"
            "[analytics]\nenabled = false\n"
            "[model_providers.contrail]\n"
            'name = "Contrail"\n'
            f'base_url = "{target.url}/v1"\n'
            'env_key = "CONTRAIL_KEY"\n'
            'wire_api = "responses"\n',
        )
        words = ("exec", "--json", "--dangerously-bypass-approvals-and-sandbox", prompt)
        return [program, *words], {"CONTRAIL_KEY": KEY}

    def shell(self, command: str) -> Call:
        return Call("exec_command", {"cmd": command})

    def counting(self, body: Any) -> None:
        return None

    def replies(self) -> list[Reply]:
        begin = Call("multi_agent_v1__spawn_agent", {"message": script.task("codex")})
        wait = Call("exec_command", {"cmd": "sleep 1; echo codex-'w'aited"})
        return [
            *script.delegation("codex", begin, [{"when": '"nickname"', "say": calling(wait, "It works on it.")}]),
            {"when": "seamlessly continue the work", "say": thinking("In short.", SUMMARY)},
        ]

    def compacted(self, body: Any) -> bool:
        return "seamlessly continue the work" in str(body["input"][-1])

    def text(self, finished: Finished) -> str:
        items = [line["item"] for line in finished.lines if line["type"] == "item.completed"]
        return str(next((item["text"] for item in reversed(items) if item["type"] == "agent_message"), ""))


class Opencode(Program):
    """Over /v1/chat/completions."""

    name: ClassVar[str] = "opencode"
    route: ClassVar[str] = "/v1/chat/completions"

    def command(self, place: Workplace, target: Target, prompt: str) -> tuple[list[str], dict[str, str]]:
        program = str(self.installed / "node_modules" / ".bin" / "opencode")
        model = {"name": target.model, "reasoning": True, "limit": {"context": target.context, "output": OUTPUT_MAX}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Contrail",
            "options": {"baseURL": f"{target.url}/v1", "apiKey": KEY},
            "models": {target.model: model},
        }
        settings = {
            "autoupdate": False,
            "share": "disabled",
            "model": f"contrail/{target.model}",
            "small_model": f"contrail/{target.model}",
            "permission": {"bash": "allow", "edit": "allow"},
            "provider": {"contrail": provider},
        }
        place.write(".config/opencode/opencode.json", settings)
        environment = {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        }
        return [program, "run", "--format", "json", prompt], environment

    def shell(self, command: str) -> Call:
        return Call("bash", {"command": command, "description": "Run it"})

    def compacted(self, body: Any) -> bool:
        return "Do not mention the summary process" in str(body["messages"][-1])

    def replies(self) -> list[Reply]:
        begin = Call(
            "task", {"description": "See to it", "prompt": script.task("opencode"), "subagent_type": "general"}
        )
        return [
            *script.delegation("opencode", begin, []),
            {"when": "Do not mention the summary process", "say": thinking("In short.", SUMMARY)},
        ]

    def text(self, finished: Finished) -> str:
        texts = [line["part"]["text"] for line in finished.lines if line["type"] == "text"]
        return str(texts[-1]) if texts else ""


class QwenCode(Program):
    """Over /v1/chat/completions."""

    name: ClassVar[str] = "qwen"
    route: ClassVar[str] = "/v1/chat/completions"
    names_sessions: ClassVar[bool] = False

    def command(self, place: Workplace, target: Target, prompt: str) -> tuple[list[str], dict[str, str]]:
        program = str(self.installed / "node_modules" / ".bin" / "qwen")
        generation = {"contextWindowSize": target.context}
        settings = {
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
            "security": {"auth": {"selectedType": "openai"}},
            "model": {"name": target.model, "generationConfig": generation},
            "tools": {"shell": {"enableInteractiveShell": False}},
        }
        place.write(".qwen/settings.json", settings)
        environment = {
            "OPENAI_BASE_URL": f"{target.url}/v1",
            "OPENAI_API_KEY": KEY,
            "OPENAI_MODEL": target.model,
            "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        }
        output = ("--output-format", "stream-json", "--include-partial-messages")
        return [program, "-p", prompt, *output, "--yolo"], environment

    def shell(self, command: str) -> Call:
        return Call("run_shell_command", {"command": command, "is_background": False})

    def compacted(self, body: Any) -> bool:
        return "produce the <state_snapshot> XML" in str(body["messages"][-1])

    def pieces(self, finished: Finished) -> list[str]:
        return _text_deltas(finished)

    def replies(self) -> list[Reply]:
        snapshot = f"<analysis>Numbers.</analysis><state_snapshot>{SUMMARY}</state_snapshot>"
        begin = Call(
            "agent", {"description": "See to it", "prompt": script.task("qwen"), "subagent_type": "general-purpose"}
        )
        launched = {"when": "Background agent launched", "say": thinking("It works on it.", "I wait.")}
        return [
            *script.delegation("qwen", begin, [launched]),
            {"when": "produce the <state_snapshot> XML", "say": thinking("In short.", snapshot)},
        ]

    def text(self, finished: Finished) -> str:
        return str(next((line.get("result", "") for line in finished.lines if line["type"] == "result"), ""))


class Aider(Program):
    """Over /v1/chat/completions; it offers no tools, and edits by blocks of text."""

    name: ClassVar[str] = "aider"
    route: ClassVar[str] = "/v1/chat/completions"
    names_sessions: ClassVar[bool] = False
    has_tools: ClassVar[bool] = False
    says_full: ClassVar[str] = "token limit"

    def command(self, place: Workplace, target: Target, prompt: str) -> tuple[list[str], dict[str, str]]:
        program = str(self.installed / "aider" / "bin" / "aider")
        place.write(
            ".aider.model.metadata.json",
            {
                f"openai/{target.model}": {
                    "max_input_tokens": target.context,
                    "max_tokens": OUTPUT_MAX,
                    "max_output_tokens": OUTPUT_MAX,
                    "input_cost_per_token": 0,
                    "output_cost_per_token": 0,
                    "litellm_provider": "openai",
                    "mode": "chat",
                }
            },
        )
        words = (
            *("--model", f"openai/{target.model}", "--weak-model", f"openai/{target.model}"),
            *("--edit-format", "diff", "--no-check-update", "--no-show-release-notes", "--analytics-disable"),
            *("--no-show-model-warnings", "--no-gitignore", "--no-auto-commits", "--yes-always", "--no-pretty"),
            *("--message", prompt, "notes.txt"),
        )
        environment = {
            "OPENAI_API_BASE": f"{target.url}/v1",
            "OPENAI_API_KEY": KEY,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        return [program, *words], environment

    def text(self, finished: Finished) -> str:
        return finished.out


def _text_deltas(finished: Finished) -> list[str]:
    """Of the events that Claude Code writes, and Qwen Code after it."""
    events = (line["event"] for line in finished.lines if line["type"] == "stream_event")
    deltas = (event["delta"] for event in events if event["type"] == "content_block_delta")
    return [delta["text"] for delta in deltas if delta["type"] == "text_delta"]


ALL = (ClaudeCode, Codex, Opencode, QwenCode, Aider)

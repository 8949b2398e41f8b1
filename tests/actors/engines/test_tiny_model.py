"""The built-in tiny model is whole, small, always the same, and says that it babbles."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jinja2
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from actors.engines.tiny_model import MARKER, ensure_tiny_checkpoint


def test_made_once(tmp_path: Path) -> None:
    """A whole checkpoint is left alone; one that is broken or of another version is made again, the same."""
    said: list[str] = []
    folder = ensure_tiny_checkpoint(tmp_path / "models" / "tiny", said.append)
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    ensure_tiny_checkpoint(folder, said.append)
    assert len(said) == 1
    assert "babbles" in said[0]
    assert "--model" in said[0]
    (folder / MARKER).write_text('{"version": 0}')
    (folder / "config.json").unlink()
    ensure_tiny_checkpoint(folder, said.append)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    shutil.rmtree(folder)


def test_tokenizer(tiny_checkpoint: Path) -> None:
    """Any text comes back as it was, and the special tokens are one id each."""
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))
    text = "def f(x):\n    return 'Grüße, 世界 🛩' "
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == 4096
    assert len(tokenizer.encode("<|im_start|><|im_end|>").ids) == 2


def test_chat_template(tiny_checkpoint: Path) -> None:
    """The template takes every role and ends, if asked, where the assistant begins."""
    config = json.loads((tiny_checkpoint / "tokenizer_config.json").read_text())
    messages = [{"role": role, "content": role[0]} for role in ("system", "user", "tool")]
    messages.insert(2, {"role": "assistant", "content": None})  # type: ignore[dict-item]
    text = jinja2.Template(config["chat_template"]).render(messages=messages, add_generation_prompt=True)
    turns = ["system\ns", "user\nu", "assistant\n", "tool\nt"]
    assert text == "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"
    assert config["eos_token"] == "<|im_end|>"


def test_weights(tiny_checkpoint: Path) -> None:
    """All weights are float32 and fit the configuration."""
    config = json.loads((tiny_checkpoint / "config.json").read_text())
    weights = load_file(tiny_checkpoint / "model.safetensors")
    assert {str(weight.dtype) for weight in weights.values()} == {"float32"}
    assert weights["lm_head.weight"].shape == (config["vocab_size"], config["hidden_size"])
    assert config["dtype"] == "float32"


def test_without_torch() -> None:
    """Making it needs no torch."""
    code = "import sys, actors.engines.tiny_model; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

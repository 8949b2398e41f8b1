"""The built-in tiny model: a complete checkpoint made here in a few seconds, without a download and without torch.

It has the shape of a Llama, random weights from a fixed seed, and a byte-level BPE tokenizer trained on Python's own
library. It speaks no language: it babbles, always the same for the same prompt, which is all that routing, caching
and the API need. A real model is named with `--model`: a folder, or a name on the Hugging Face hub.
"""

from __future__ import annotations

import json
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CHECKPOINT_VERSION = 1
"""Written into the folder last; another number means that the checkpoint is made again."""
MARKER = "contrail-tiny.json"

VOCAB, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 4096, 256, 688, 4, 8, 4, 64, 8192
WEIGHT_STD = 0.2
"""Ten times the usual spread: greedy text then varies instead of repeating one token."""
WEIGHT_SEED = 20_261_120
TEXT_FILES_MAX = 150
"""The number of files of Python's library that the tokenizer is trained on."""
TEXT_FILE_BYTES_MAX = 100_000
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, START, END)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML: any role (system, user, assistant, tool), content as a string or none."""


def ensure_tiny_checkpoint(folder: Path, on_progress: Callable[[str], None]) -> Path:
    """`folder` holds the whole tiny checkpoint; made in a few seconds if it did not, never seen half made."""
    if is_complete(folder):
        return folder
    on_progress(
        "making the built-in tiny model: random weights, it only babbles; "
        "for a real model give --model FOLDER or the name of one on the Hugging Face hub"
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(made)
        _move(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def is_complete(folder: Path) -> bool:
    """True if the folder holds a tiny checkpoint of this version."""
    marker = folder / MARKER
    return marker.is_file() and json.loads(marker.read_text()) == {"version": CHECKPOINT_VERSION}


def _move(made: Path, folder: Path) -> None:
    """The checkpoint is at `folder`; an equal one of a faster process is kept."""
    stale = made.with_name(f"{made.name}-stale")
    try:
        if folder.exists() and not is_complete(folder):
            folder.rename(stale)
        made.rename(folder)
    except OSError:
        if not is_complete(folder):
            raise
    finally:
        shutil.rmtree(stale, ignore_errors=True)


def _write(folder: Path) -> None:
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {name: number for number, name in enumerate(SPECIAL_TOKENS)}  # the trainer numbers them first
    _dump(folder / "tokenizer_config.json", _tokenizer_config(ids))
    _dump(folder / "config.json", _config(ids))
    ends = {"bos_token_id": ids[END_OF_TEXT], "eos_token_id": ids[END], "pad_token_id": ids[END_OF_TEXT]}
    _dump(folder / "generation_config.json", ends)
    save_file(_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    folder.chmod(0o755)
    _dump(folder / MARKER, {"version": CHECKPOINT_VERSION})


def _dump(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _texts() -> Iterator[str]:
    """The text at hand: Python's library, in a fixed order."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:TEXT_FILES_MAX]:
        yield path.read_text(encoding="utf-8", errors="replace")[:TEXT_FILE_BYTES_MAX]


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return tokenizer


def _tokenizer_config(ids: dict[str, int]) -> dict[str, Any]:
    added = {
        str(number): {
            "content": name,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for name, number in ids.items()
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "added_tokens_decoder": added,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _config(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": WEIGHT_STD,
        "torch_dtype": "float32",
        "dtype": "float32",
        "bos_token_id": ids[END_OF_TEXT],
        "eos_token_id": ids[END],
        "pad_token_id": ids[END_OF_TEXT],
    }


def _weights() -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(WEIGHT_SEED)

    def normal(rows: int, columns: int) -> NDArray[np.float32]:
        return random.standard_normal((rows, columns), dtype=np.float32) * np.float32(WEIGHT_STD)

    ones = np.ones(HIDDEN, dtype=np.float32)
    weights = {"model.embed_tokens.weight": normal(VOCAB, HIDDEN), "lm_head.weight": normal(VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        weights |= {
            f"{at}.self_attn.q_proj.weight": normal(HEADS * HEAD_DIM, HIDDEN),
            f"{at}.self_attn.k_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}.self_attn.v_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}.self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD_DIM),
            f"{at}.mlp.gate_proj.weight": normal(INTERMEDIATE, HIDDEN),
            f"{at}.mlp.up_proj.weight": normal(INTERMEDIATE, HIDDEN),
            f"{at}.mlp.down_proj.weight": normal(HIDDEN, INTERMEDIATE),
            f"{at}.input_layernorm.weight": ones.copy(),
            f"{at}.post_attention_layernorm.weight": ones.copy(),
        }
    return weights | {"model.norm.weight": ones}

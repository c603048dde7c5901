"""Chat templates, small tokenizers and conversations, and a literal reading of GPT-NeoX's rule for labels."""

from __future__ import annotations

import inspect
import json
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from neoxargs.data.chat import command

IGNORED = -100
Message = dict[str, Any]

#: Templates in the styles of published models, which write the first messages of a chat alike however many follow.
TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "headers": "{{ bos_token }}{% for m in messages %}<|header|>{{ m['role'] }}<|/header|>\n\n{{ m['content'] | trim }}"
    "<|eot|>{% endfor %}{% if add_generation_prompt %}<|header|>assistant<|/header|>\n\n{% endif %}",
    "zephyr": "{% for m in messages %}\n{% if m['role'] == 'user' %}\n{{ '<|user|>\n' + m['content'] + eos_token }}\n"
    "{% elif m['role'] == 'system' %}\n{{ '<|system|>\n' + m['content'] + eos_token }}\n"
    "{% elif m['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + m['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    "instructions": "{%- if messages[0].role == 'system' %}{%- set rest = messages[1:] %}{%- set system = "
    "messages[0].content + '\n\n' %}{%- else %}{%- set rest = messages %}{%- set system = '' %}{%- endif %}"
    "{{ bos_token }}{%- for m in rest %}{%- if m.role == 'user' %}[INST] {{ (system if loop.first else '') "
    "+ m.content }} [/INST]{%- else %}{{ ' ' + m.content + eos_token }}{%- endif %}{%- endfor %}",
    "plain": "{% for m in messages %}{{ m.role | title }}: {{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}",
}
#: ChatML as transformers wants it for masks: marks around what the assistant writes.
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: A template in the style of Qwen 3: reasoning is shown in the last turn only.
REASONING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content and loop.last %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKERS = ["<s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|header|>", "<|/header|>", "<|eot|>", "[INST]"]

CHATS: list[list[Message]] = [
    [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}],
    [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Where is Kyōto?\n"},
     {"role": "assistant", "content": "日本"}, {"role": "user", "content": "  And Łódź?"},
     {"role": "assistant", "content": "Poland 🇵🇱"}],
    [{"role": "user", "content": "def f(x):\n    return x"},
     {"role": "assistant", "content": "It returns its argument.\n"}, {"role": "user", "content": "Thanks <|im_end|>"}],
]  # fmt: skip


THINKING: list[Message] = [
    {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4 ", "reasoning_content": "Easy."},
    {"role": "user", "content": "3 + 3?"}, {"role": "assistant", "content": "6", "reasoning_content": "Also easy."},
]  # fmt: skip


def neox_labels(
    chat: list[Message], tokenizer: Any, role: str = "assistant", only_last: bool = False
) -> tuple[list[int], list[int]]:
    """Return tokens and labels by GPT-NeoX's rule, read literally: every turn is a slice of tokens.

    tokenizer: of transformers.
    """
    tokens: list[int] = []
    labels: list[int] = []
    for number in range(1, len(chat) + 1):
        prompt = number < len(chat) and chat[number]["role"] == role
        so_far = tokenizer.apply_chat_template(chat[:number], add_generation_prompt=prompt, return_dict=False)
        turn = so_far[len(tokens) :]
        trained = chat[number - 1]["role"] == role and (number == len(chat) or not only_last)
        labels += turn if trained else [IGNORED] * len(turn)
        tokens += turn
    if tokenizer.eos_token_id is not None:
        labels.append(IGNORED if labels[-1] == IGNORED else tokenizer.eos_token_id)
        tokens.append(tokenizer.eos_token_id)
    return tokens, labels


def neox_reward_labels(chat: list[Message], tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return tokens and labels by GPT-NeoX's rule for reward models."""
    tokens = [*tokenizer.apply_chat_template(chat, return_dict=False), *[tokenizer.eos_token_id] * 2]
    return tokens, [*[IGNORED] * (len(tokens) - 1), tokenizer.eos_token_id]


# -- tokenizers ------------------------------------------------------------------------------------------------------


def _gpt2() -> Tokenizer:
    """GPT-2's: bytes, with the end token as the only special token."""
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"])


def _neox() -> Tokenizer:
    """GPT-NeoX-20B's, whose offsets leave out the space before a word."""
    tokenizer = _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), MARKERS)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


def _llama3() -> Tokenizer:
    """Llama 3's pattern of words, and a first token that text gets but chats do not."""
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(Regex(words), "isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = _byte_level(pre_tokenizers.Sequence([split, bytes_only]), MARKERS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def _byte_level(split: Any, special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([inspect.getsource(inspect)], trainer)
    return tokenizer


def _metaspace() -> Tokenizer:
    """SentencePiece's spaces, as in Llama 2, with bytes for unknown characters."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<unk>", *MARKERS, "</s>", *pieces], show_progress=False, max_token_length=12
    )
    tokenizer.train_from_iterator(inspect.getsource(inspect).splitlines(keepends=True), trainer)
    return tokenizer


BUILDERS: dict[str, Callable[[], Tokenizer]] = {"gpt2": _gpt2, "neox": _neox, "llama3": _llama3,
                                                "metaspace": _metaspace}  # fmt: skip


@cache
def tokenizer_json(name: str) -> str:
    return BUILDERS[name]().to_str()


def write_folder(folder: Path, tokenizer: str, template: str) -> Any:
    """Write a Hugging Face folder with a tokenizer and a template; return transformers' tokenizer."""
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer.from_str(tokenizer_json(tokenizer))
    hf = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=inner, bos_token="<s>", eos_token="<|endoftext|>", chat_template=template
    )
    hf.save_pretrained(str(folder))
    return hf


# -- files -----------------------------------------------------------------------------------------------------------


def write_chats(path: Path, key: str = "conversation", chats: list[list[Message]] = CHATS) -> Path:
    """Write one chat per line."""
    path.write_text("".join(json.dumps({key: chat}, ensure_ascii=False) + "\n" for chat in chats), encoding="utf-8")
    return path


def read_tokens(prefix: Path) -> list[list[int]]:
    """Return the sequences of a Megatron token file of int32."""
    index = Path(f"{prefix}.idx").read_bytes()
    magic, version, code, count, documents = struct.unpack("<9sQBQQ", index[:34])
    assert (magic, version, code, documents) == (b"MMIDIDX\x00\x00", 1, 4, count + 1)
    lengths = np.frombuffer(index, np.int32, count, 34)
    tokens = np.fromfile(f"{prefix}.bin", np.int32)
    assert len(tokens) == lengths.sum()
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])] if count else []


def tokenised(prefix: Path, *words: object) -> list[tuple[list[int], list[int]]]:
    """Run `deepy data --chat`; return tokens and labels of each conversation."""
    assert command.main(["--chat", *map(str, words), "--output-prefix", str(prefix)]) == 0
    return read_pair(prefix)


def read_pair(prefix: Path) -> list[tuple[list[int], list[int]]]:
    """Return tokens and labels of each conversation."""
    return list(zip(read_tokens(prefix), read_tokens(Path(f"{prefix}_label")), strict=True))

"""Tokenizer files: written to a Hugging Face folder, read from one, and copied beside an imported checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from neoxargs.problems import Problem, Problems
from neoxargs.registry.data import Tokenizer as Options
from neoxargs.train.data.tokenizer import ByteTokenizer, FastTokenizer, PieceTokenizer, Tokenizer

#: tokenizer_type -> parameters and the files of a folder that they name, in the order in which they are searched.
FILES: tuple[tuple[str, dict[str, str]], ...] = (
    ("HFTokenizer", {"vocab_file": "tokenizer.json"}),
    ("GPT2BPETokenizer", {"vocab_file": "vocab.json", "merge_file": "merges.txt"}),
    ("SPMTokenizer", {"vocab_file": "tokenizer.model"}),
)


def write(options: Options, tokenizer: Tokenizer, seq_length: int, folder: Path) -> bool:
    """Write the tokenizer's files for transformers; return False if transformers has no equivalent tokenizer."""
    # Otherwise transformers removes blanks before punctuation when it decodes.
    described: dict[str, Any] = {"model_max_length": seq_length, "clean_up_tokenization_spaces": False}
    if isinstance(tokenizer, PieceTokenizer):
        shutil.copyfile(str(options.vocab_file), folder / "tokenizer.model")
        # No token at the beginning, as in training.
        described |= {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}
    elif inner := _fast_tokenizer(options, tokenizer):
        inner.save(str(folder / "tokenizer.json"))
        end = inner.id_to_token(tokenizer.eod)
        described |= {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": end, "eos_token": end}
    else:
        return False
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    return True


def tokenizer_parameters(source: Path) -> dict[str, str]:
    """Return the parameters that select the folder's tokenizer; raise Problems if it has none."""
    for kind, files in FILES:
        if all((source / name).exists() for name in files.values()):
            return {"tokenizer_type": kind, **{parameter: str(source / name) for parameter, name in files.items()}}
    what = f"{source} has no tokenizer: neither tokenizer.json, nor vocab.json with merges.txt, nor tokenizer.model"
    hint = "select a tokenizer with --tokenizer-type NAME [--vocab-file FILE]"
    raise Problems(Problem(what, hint=hint, id="huggingface-tokenizer-missing"))


def copy_files(parameters: dict[str, str], folder: Path, final: Path) -> dict[str, str]:
    """Copy the files that the parameters name to a folder; return the parameters with the new paths.

    final: the folder's path after renaming.
    """
    files = {name: path for name, path in parameters.items() if name.endswith("_file") and Path(path).is_file()}
    for path in files.values():
        shutil.copyfile(path, folder / Path(path).name)
    return parameters | {parameter: str(final / Path(path).name) for parameter, path in files.items()}


def _fast_tokenizer(options: Options, tokenizer: Tokenizer) -> Any:
    """Return the equivalent tokenizer of Hugging Face's `tokenizers`; None if there is none."""
    if isinstance(tokenizer, FastTokenizer):
        return tokenizer.inner
    byte_level = isinstance(tokenizer, ByteTokenizer) and options.tokenizer_type == "ByteLevelTokenizer"
    return _byte_level() if byte_level else None


def _byte_level() -> Any:
    """Build the ByteLevelTokenizer: byte pair encoding without merges, and an end-of-document token."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Fast

    inner = Fast(models.BPE({_gpt2_character(byte): byte for byte in range(256)}, []))
    # No regex: GPT-2's would split the text into words first, which is of no use without merges.
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("<|endoftext|>")])
    return inner


def _gpt2_character(byte: int) -> str:
    """Return GPT-2's character for a byte: printable Latin-1 bytes stand for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte) if byte in printable else chr(0x100 + [b for b in range(256) if b not in printable].index(byte))

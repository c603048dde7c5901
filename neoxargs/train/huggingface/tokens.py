"""A tokenizer's files, in a Hugging Face folder and beside a checkpoint of ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from neoxargs.problems import Problem, Problems
from neoxargs.registry.data import Tokenizer as Options
from neoxargs.train.data.tokenizer import ByteTokenizer, FastTokenizer, PieceTokenizer, Tokenizer

#: What is looked for in a folder -> the parameters that read it.
FILES: tuple[tuple[str, dict[str, str]], ...] = (
    ("HFTokenizer", {"vocab_file": "tokenizer.json"}),
    ("GPT2BPETokenizer", {"vocab_file": "vocab.json", "merge_file": "merges.txt"}),
    ("SPMTokenizer", {"vocab_file": "tokenizer.model"}),
)


def write(options: Options, tokenizer: Tokenizer, seq_length: int, folder: Path) -> bool:
    """The tokenizer's files for transformers; False where it has none like it."""
    described: dict[str, Any] = {"model_max_length": seq_length, "clean_up_tokenization_spaces": False}
    if isinstance(tokenizer, PieceTokenizer):
        shutil.copyfile(str(options.vocab_file), folder / "tokenizer.model")
        described |= {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}
    elif inner := _inner(options, tokenizer):
        inner.save(str(folder / "tokenizer.json"))
        end = inner.id_to_token(tokenizer.eod)
        described |= {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": end, "eos_token": end}
    else:
        return False
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    return True


def tokenizer_parameters(source: Path) -> dict[str, str]:
    """The parameters that name the folder's tokenizer; raises Problems where it has none."""
    for kind, files in FILES:
        if all((source / name).exists() for name in files.values()):
            return {"tokenizer_type": kind, **{parameter: str(source / name) for parameter, name in files.items()}}
    what = f"{source} has no tokenizer: no tokenizer.json, vocab.json with merges.txt, or tokenizer.model"
    hint = "pass --tokenizer-type NAME [--vocab-file FILE]"
    raise Problems(Problem(what, hint=hint, id="huggingface-tokenizer-missing"))


def copied(named: dict[str, str], folder: Path, final: Path) -> dict[str, str]:
    """The same with files of their own in a folder, which will be `final`."""
    files = {name: path for name, path in named.items() if name.endswith("_file") and Path(path).is_file()}
    for path in files.values():
        shutil.copyfile(path, folder / Path(path).name)
    return named | {parameter: str(final / Path(path).name) for parameter, path in files.items()}


def _inner(options: Options, tokenizer: Tokenizer) -> Any:
    """As Hugging Face's `tokenizers` has it."""
    if isinstance(tokenizer, FastTokenizer):
        return tokenizer.inner
    one_each = isinstance(tokenizer, ByteTokenizer) and options.tokenizer_type == "ByteLevelTokenizer"
    return _bytes() if one_each else None


def _bytes() -> Any:
    """A token for each byte, and the end of a document: byte pairs of which none are ever merged."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Fast

    inner = Fast(models.BPE({_letter(byte): byte for byte in range(256)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("<|endoftext|>")])
    return inner


def _letter(byte: int) -> str:
    """GPT-2's: a byte that is printed in Latin-1 is itself, the others follow from U+0100 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte) if byte in itself else chr(0x100 + [b for b in range(256) if b not in itself].index(byte))

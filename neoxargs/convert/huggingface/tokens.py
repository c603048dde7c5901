"""Tokenizer files: written to a Hugging Face folder, read from one, and copied beside an imported checkpoint.

Files that are there are copied unchanged (files/tokenizer_folder.py); others are made from the run's tokenizer.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Problem, Problems
from neoxargs.data.tokenizer import ByteTokenizer, FastTokenizer, PieceTokenizer, Tokenizer
from neoxargs.files import tokenizer_folder
from neoxargs.files.tokenizer_folder import GENERATION
from neoxargs.registry.data import Tokenizer as Options

#: tokenizer_type -> parameters and the files of a folder that they name, in the order in which they are searched.
FILES: tuple[tuple[str, dict[str, str]], ...] = (
    ("HFTokenizer", {"vocab_file": "tokenizer.json"}),
    ("GPT2BPETokenizer", {"vocab_file": "vocab.json", "merge_file": "merges.txt"}),
    ("SPMTokenizer", {"vocab_file": "tokenizer.model"}),
)
#: The files of byte pair encoding that a tokenizer.json replaces.
GPT2 = ("vocab.json", "merges.txt")


def write(options: Options, tokenizer: Tokenizer, seq_length: int, folder: Path) -> bool:
    """Write the tokenizer's files for transformers; return False if transformers has no equivalent tokenizer."""
    files = tokenizer_folder.files(options.tokenizer_type, options.vocab_file, options.merge_file)
    # The exported model has its own config.json.
    of_a_model = files.pop(tokenizer_folder.MODEL, None) is not None
    if not of_a_model and GENERATION not in files:
        _write_json(folder / GENERATION, {"bos_token_id": tokenizer.start, "eos_token_id": tokenizer.eod})
    # A model's folder has all that transformers needs, and one more file would change what it reads.
    is_described = of_a_model or tokenizer_folder.CONFIG in files
    made = () if is_described or options.tokenizer_type == "HFTokenizer" else ("tokenizer.json", *GPT2)
    copy({name: file for name, file in files.items() if name not in made}, folder)
    if not is_described:
        described = _described(options, tokenizer, folder)
        if described is None:
            return False
        # Otherwise transformers removes blanks before punctuation when it decodes.
        general = {"model_max_length": seq_length, "clean_up_tokenization_spaces": False}
        _write_json(folder / tokenizer_folder.CONFIG, general | described)
    return True


def _described(options: Options, tokenizer: Tokenizer, folder: Path) -> dict[str, Any] | None:
    """Return the tokenizer's description, and write its vocabulary if it has no file for transformers.

    None if transformers has no equivalent tokenizer.
    """
    if isinstance(tokenizer, PieceTokenizer):
        # No token at the beginning, as in training.
        return {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}
    if isinstance(tokenizer, FastTokenizer):
        inner = tokenizer.inner
    elif isinstance(tokenizer, ByteTokenizer) and options.tokenizer_type == "ByteLevelTokenizer":
        inner = _byte_level()
    else:
        return None
    if options.tokenizer_type != "HFTokenizer":
        inner.save(str(folder / "tokenizer.json"))
    start, end = map(inner.id_to_token, (tokenizer.start, tokenizer.eod))
    return {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": start, "eos_token": end}


def copy(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files to a folder, under these names."""
    for name, file in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(file, folder / name)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def tokenizer_parameters(source: Path) -> dict[str, str]:
    """Return the parameters that select the folder's tokenizer; raise Problems if it has none."""
    if found := _parameters(source):
        return found
    what = f"{source} has no tokenizer: neither tokenizer.json, nor vocab.json with merges.txt, nor tokenizer.model"
    hint = "select a tokenizer with --tokenizer-type NAME [--vocab-file FILE]"
    raise Problems(Problem(what, hint=hint, id="huggingface-tokenizer-missing"))


def _parameters(source: Path) -> dict[str, str] | None:
    for kind, files in FILES:
        if all((source / name).exists() for name in files.values()):
            return {"tokenizer_type": kind, **{parameter: str(source / name) for parameter, name in files.items()}}
    return None


def copy_files(parameters: dict[str, str], source: Path, folder: Path, final: Path) -> dict[str, str]:
    """Copy the files of a tokenizer to a folder; return its parameters with the new paths.

    source: the folder of the model, whose settings of generation come along unless it has another tokenizer.
    final: the folder's path after renaming.
    """
    kind, vocabulary, merges = (parameters.get(name) for name in ("tokenizer_type", "vocab_file", "merge_file"))
    files = tokenizer_folder.files(str(kind), vocabulary, merges, settings=False)
    own = _parameters(source)
    if files and (own is None or Path(str(vocabulary)).parent.resolve() == source.resolve()):
        files |= {name: source / name for name in tokenizer_folder.SETTINGS if (source / name).is_file()}
    named = {name: Path(path) for name, path in parameters.items() if name.endswith("_file") and Path(path).is_file()}
    files |= {path.name: path for path in named.values() if path not in files.values()}
    copy(files, folder)
    new = {path: str(final / name) for name, path in files.items()}
    return parameters | {name: new[path] for name, path in named.items()}


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

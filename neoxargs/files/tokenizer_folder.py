"""The folder of a tokenizer, as Hugging Face stores it: its files, and the tokens that begin and end a text.

    tokenizer.json, or vocab.json and merges.txt, or tokenizer.model    the vocabulary, which `vocab_file` names
    tokenizer_config.json, special_tokens_map.json                      the special tokens by name, and chat templates
    chat_template.jinja, additional_chat_templates/                     more chat templates
    generation_config.json                                              the tokens that end a generation, and sampling
    config.json                                                         the model's; it has token ids, too

What names the end of a document here is what `deepy data`, training and generation use. The files travel unchanged:
from an imported folder to a checkpoint, and from there to an exported folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from neoxargs.base.problems import Problem, Problems
from neoxargs.facts.vocab import tokenizer_file

CONFIG, TOKENS = "tokenizer_config.json", "special_tokens_map.json"
TEMPLATE, MORE_TEMPLATES = "chat_template.jinja", "additional_chat_templates"
GENERATION, MODEL = "generation_config.json", "config.json"
#: Names of the end-of-document token, in the order in which a vocabulary is searched if the tokenizer's folder names
#: none. The first is GPT-2's and NeoX's; the last ones end a turn, in vocabularies that have nothing else.
END_OF_DOCUMENT = (
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]", "<|im_end|>", "<|eot_id|>",
    "<end_of_turn>", "<|end|>",
)  # fmt: skip
#: How to make a tokenizer.json.
MAKE_JSON = "load the tokenizer with transformers and call tokenizer.save_pretrained(FOLDER)"
#: Names of special tokens.
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
#: The files of a tokenizer, besides those that tokenizer_type reads.
FILES = (
    "tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model*", "spiece.model", "tekken.json",
    "*.tiktoken", "tokenization_*.py", CONFIG, TOKENS, "added_tokens.json", "chat_template.*",
    f"{MORE_TEMPLATES}/*.jinja",
)  # fmt: skip
#: The files that say how text is generated; they come with a model.
SETTINGS = (GENERATION, MODEL)
#: tokenizer_type -> the names under which transformers finds what `vocab_file` and `merge_file` name.
VOCABULARY = {
    "HFTokenizer": ("tokenizer.json",),
    "GPT2BPETokenizer": ("vocab.json", "merges.txt"),
    "SPMTokenizer": ("tokenizer.model",),
    "HFGPT2Tokenizer": (),
}


def folder_of(tokenizer_type: str, vocab_file: str | None) -> Path | None:
    """Return the folder with a tokenizer's files; None if it has none, or only a name on the Hub."""
    if tokenizer_type not in VOCABULARY or not vocab_file:
        return None
    file = tokenizer_file(vocab_file)
    return file.parent if VOCABULARY[tokenizer_type] or file.is_file() else None


def files(
    tokenizer_type: str, vocab_file: str | None, merge_file: str | None = None, settings: bool = True
) -> dict[str, Path]:
    """Return the files of a tokenizer: name in a Hugging Face folder -> file. settings: include SETTINGS."""
    folder = folder_of(tokenizer_type, vocab_file)
    if folder is None:
        return {}
    patterns = (*FILES, *SETTINGS) if settings else FILES
    found = {str(file.relative_to(folder)): file for pattern in patterns for file in sorted(folder.glob(pattern))}
    # The named files, whatever their names are: they are what the run reads.
    named = zip(VOCABULARY[tokenizer_type], (vocab_file, merge_file), strict=False)
    found |= {name: Path(file) for name, file in named if file}
    return {name: file for name, file in found.items() if file.is_file()}


class SpecialTokens(NamedTuple):
    """What a tokenizer's folder says about special tokens."""

    texts: Mapping[str, str] = {}
    """Name, such as `eos_token` -> text."""
    names_end: bool = False
    """Whether the folder has an `eos_token`, which may be null: there is no end token then."""

    @property
    def end(self) -> str | None:
        return self.texts.get("eos_token")


def special_tokens(folder: Path | None) -> SpecialTokens:
    """Return the special tokens of a folder; raise Problems if a file is damaged."""
    texts: dict[str, str] = {}
    names_end = False
    # The values of the first file come before those of the second one.
    for file in (folder / CONFIG, folder / TOKENS) if folder else ():
        values = read_json(file) if file.is_file() else {}
        texts = {name: text for name in NAMES if (text := _text_of(values.get(name))) is not None} | texts
        names_end = names_end or "eos_token" in values
    return SpecialTokens(texts, names_end)


def _text_of(value: Any) -> str | None:
    """Return the text of a special token, which is stored as a string or with its properties."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def added_tokens(folder: Path) -> list[str]:
    """Return the tokens that a folder adds to a vocabulary that is not a tokenizer.json; raise Problems."""
    file, added = folder / CONFIG, folder / "added_tokens.json"
    tokens = read_json(file).get("added_tokens_decoder") if file.is_file() else None
    if isinstance(tokens, dict):
        return [text for token in tokens.values() if (text := _text_of(token)) is not None]
    return list(read_json(added)) if added.is_file() else []


def end_of_document(folder: Path | None, find: Callable[[str], int | None], otherwise: int | None = None) -> int | None:
    """Return the id of the token that ends a document, in token files, training and generation; None if there is none.

    find: returns the id of a token. otherwise: the id that the vocabulary's own file declares.
    Raises Problems if the folder names a token that the vocabulary does not have, or if a file is damaged.
    """
    if (named := special_tokens(folder).end) is None:
        ids = (*map(find, END_OF_DOCUMENT), *end_ids(folder), otherwise)
        return next((id for id in ids if id is not None), None)
    if (id := find(named)) is None:
        what = f"eos_token ({named}), set in the tokenizer's folder, is not in the tokenizer's vocabulary"
        hint = f"set vocab_file to a tokenizer.json that has it ({MAKE_JSON}), or correct eos_token in {CONFIG}"
        raise Problems(Problem(what, hint=hint, id="eos-token-not-in-vocabulary", about=("vocab_file",)))
    return id


def end_ids(folder: Path | None) -> list[int]:
    """Return the tokens at which transformers ends a generation, as far as the folder says so; raise Problems."""
    for file in (folder / name for name in SETTINGS) if folder else ():
        values: dict[str, Any] = {}
        # A config.json that is not JSON is of no model: other programs have files of this name, too.
        with suppress(*[Problems] * (file.name == MODEL)):
            values = read_json(file) if file.is_file() else {}
        if found := list(_ids(values.get("eos_token_id"))):
            return found
    return []


def _ids(value: Any) -> Iterator[int]:
    """Yield the ids of a setting, which is one id or a list of them."""
    for id in value if isinstance(value, list) else [value]:
        if isinstance(id, int) and not isinstance(id, bool) and id >= 0:
            yield id


def token_ids(folder: Path | None) -> dict[str, Any] | None:
    """Return what the model's config.json says about tokens, unchanged; None if the folder has no such file."""
    if folder is None or not (folder / MODEL).is_file():
        return None
    values = read_json(folder / MODEL)
    return {name: values[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id", "tokenizer_class")
            if name in values}  # fmt: skip


def read_json(file: Path) -> dict[str, Any]:
    """Return the values of a JSON file, {} if it has a list or a number; raise Problems if it cannot be read."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise Problems(Problem(f"{file} is not JSON: {reason}", id="tokenizer-config-not-json")) from error
    return values if isinstance(values, dict) else {}

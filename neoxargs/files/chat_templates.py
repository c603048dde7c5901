"""Read what Hugging Face stores in a tokenizer's folder for chats: special tokens by name, and chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from neoxargs.base.problems import Problem, Problems, did_you_mean, listed
from neoxargs.base.record import Record
from neoxargs.files import tokenizer_folder
from neoxargs.files.builtin_chat_templates import BUILT_IN
from neoxargs.files.tokenizer_folder import CONFIG, MORE_TEMPLATES, TEMPLATE, TOKENS


class TemplateSource(NamedTuple):
    """The text of a template and where it is from."""

    text: str
    name: str
    """A path, or the name of a built-in template."""
    first_line: int = 1
    """Line at which the text begins in the file; 0 if the file stores the text as a JSON string."""


class ChatSettings(Record):
    """Special tokens and templates of a tokenizer."""

    special: Mapping[str, str] = {}
    """Name of a special token, such as `eos_token` -> its text."""
    templates: Mapping[str, TemplateSource] = {}
    """Name -> template; `default` is the one without a name."""
    names_end: bool = False
    """Whether the folder has an `eos_token`, which may be null."""


def files(tokenizer_type: str, vocab_file: str | None) -> list[Path]:
    """Return the files of the tokenizer's folder on which the result depends."""
    folder = tokenizer_folder.folder_of(tokenizer_type, vocab_file)
    if folder is None:
        return []
    more = sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
    return [file for file in (folder / CONFIG, folder / TOKENS, folder / TEMPLATE, *more) if file.is_file()]


def read(tokenizer_type: str, vocab_file: str | None) -> ChatSettings:
    """Return what the folder of the tokenizer's `vocab_file` says about chats; raise Problems if a file is damaged."""
    special = tokenizer_folder.special_tokens(tokenizer_folder.folder_of(tokenizer_type, vocab_file))
    templates: dict[str, TemplateSource] = {}
    for file in files(tokenizer_type, vocab_file):
        if file.suffix == ".jinja":
            name = "default" if file.name == TEMPLATE else file.stem
            templates[name] = TemplateSource(_text(file), str(file))
            continue
        # chat_template.jinja comes later in `files` and replaces this one, as in transformers.
        templates |= _templates(tokenizer_folder.read_json(file).get("chat_template"), file)
    return ChatSettings(special.texts, templates, special.names_end)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Problems(Problem(f"{file} cannot be read: {error}", id="chat-template-unreadable")) from error


def _templates(value: Any, file: Path) -> dict[str, TemplateSource]:
    """Return the templates under `chat_template`: one text, or a list of texts with names."""
    if isinstance(value, str):
        return {"default": TemplateSource(value, str(file), 0)}
    named = value if isinstance(value, list) else []
    return {
        entry["name"]: TemplateSource(entry["template"], str(file), 0)
        for entry in named
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
    }


def choose(settings: ChatSettings, requested: str | None, option: str = "--chat-template") -> dict[str, TemplateSource]:
    """Return the template to use as `default`, and as `tool_use` another one for conversations with tools, if any.

    requested: a file, the name of a template in the tokenizer's folder, or a built-in name; None for the tokenizer's.
    option: what sets it.
    Raises Problems if there is no such template.
    """
    if requested is None:
        return _tokenizer_templates(settings, option)
    if Path(requested).is_file():
        return {"default": TemplateSource(_text(Path(requested)), requested)}
    if requested in settings.templates:
        return {"default": settings.templates[requested]}
    if requested in BUILT_IN:
        return {"default": TemplateSource(BUILT_IN[requested], requested)}
    known = [*settings.templates, *BUILT_IN]
    what = f"{option} ({requested}) is neither a file nor the name of a template"
    hint = did_you_mean(requested, known) or f"use a file, or one of {', '.join(known)}"
    raise Problems(Problem(what, hint=hint, id="chat-template-unknown"))


def _tokenizer_templates(settings: ChatSettings, option: str) -> dict[str, TemplateSource]:
    if "default" in settings.templates:
        return {name: source for name, source in settings.templates.items() if name in ("default", "tool_use")}
    if settings.templates:
        names = listed(settings.templates, "and")
        what = f"the tokenizer has the chat templates {names}, but none of them is the default"
        hint = f"choose one, for example: {option} {next(iter(settings.templates))}"
    else:
        what = "the tokenizer has no chat template"
        hint = f"set {option} to a Jinja file, or to one of deepy's own templates: {', '.join(BUILT_IN)}"
    raise Problems(Problem(what, hint=hint, id="chat-template-missing"))

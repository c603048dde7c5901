"""Names similar to an unknown key: the same word in another section, a similar word in this or any section."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from neoxargs.base.problems import SET, close_matches, listed
from neoxargs.registry import REGISTRY
from neoxargs.resolve.keys.match import Key, Match, keys_of
from neoxargs.resolve.keys.other_programs import in_sections

#: Words up to this length are similar to too many names.
SHORT_WORD = 6
#: For a word with more parameters than this, only the sections are listed.
MANY_PLACES = 3
#: Sections of which a run can enable only one.
ONE_PRECISION = {"fp16", "bf16", "amp"}


def same_word(key: Key) -> Match | None:
    """Match the same word, or another program's name for it, in this section or others."""
    # `lr` for `learning_rate` in `optimizer.params`.
    meant = in_sections(key.word) if key.section else None
    inside = (f"{key.section}.{meant}", f"{key.section}.params.{meant}") if meant else ()
    names = [full for full in REGISTRY.parameters if full in inside] or _in_other_sections(key)
    if len(names) > MANY_PLACES:
        sections = listed(sorted(_sections(names)), most=8)
        return Match("same word", f"{key.word} is a key of these sections: {sections}; move it into one of them")
    return Match("same word", _moved(names, key), tuple(names)) if names else None


def similar_here(key: Key) -> Match | None:
    """Match a similar word among the valid names of the key's section, old spellings included."""
    # A section can only be a name whose value may be a mapping.
    valid = {
        word: full
        for word, full in keys_of(key.section).items()
        if not key.is_section or full in REGISTRY.sections or "dict" in REGISTRY.parameters[full].annotation
    }
    words = _similar(key.word, valid)
    if not words:
        return None
    present = {word: valid[word].rpartition(".")[2] for word in words}
    named = (word if word == now else f"{now} (old name: {word})" for word, now in present.items())
    hint = f"did you mean {listed(named)}?"
    return Match("similar", hint, tuple(valid[word] for word in words), words[0] if len(words) == 1 else "")


def similar_anywhere(key: Key) -> Match | None:
    """Match a very similar word in any section."""
    if not key.section and len(key.word) <= SHORT_WORD:
        return None
    names = [*REGISTRY.sections, *([] if key.is_section else REGISTRY.parameters)]
    # Stricter than within a section: among all names, there is a slightly similar one for almost any word.
    everywhere = {full.rpartition(".")[2]: full for full in names if key.section or full.count(".") <= 1}
    found = [everywhere[word] for word in _similar(key.word, everywhere, 0.85)]
    return Match("similar", _moved(found, key), tuple(found)) if found else None


def _in_other_sections(key: Key) -> list[str]:
    """Return the same word in other sections, those nested least first."""
    section, word = key.section, key.word
    names = [*REGISTRY.parameters, *REGISTRY.sections]
    same = [full for full in names if full.rpartition(".")[2] == word and full.rpartition(".")[0] != section]
    if word in same:
        return [word]
    if not section:  # a deeply nested parameter is rarely meant by a top-level key
        same = [full for full in same if full.count(".") <= 2]
    below = [full for full in same if full.startswith(f"{section}.")] if section else []
    return below or sorted(same, key=lambda full: full.count("."))


def _similar(word: str, choices: Mapping[str, str], alike: float = 0.75) -> list[str]:
    lower = {choice.lower(): choice for choice in choices}
    return [lower[choice] for choice in close_matches(word.lower(), lower, alike=alike)]


def _moved(names: list[str], key: Key) -> str:
    """Return the hint for names in other sections, with where to write them."""
    sections = _sections(names)
    if len(names) == 1 and (reason := _useless(names[0], key)):
        return f"remove {key.word}: {reason}"
    if key.section and sections == [key.section]:
        return f"did you mean {listed(full.rpartition('.')[2] for full in names)}?"
    hint = f"did you mean {listed(names)}?"
    if key.where.file == SET or len(sections) != 1:
        return hint
    return hint + (f" move it under `{sections[0]}:`" if sections[0] else " move it to the top level")


def _useless(name: str, key: Key) -> str:
    """Return why it would not help to move a key to where this parameter is, else ""."""
    section = name.rpartition(".")[0]
    if section != key.section and {section, key.section} <= ONE_PRECISION:
        return f"it is a key of {section}, which cannot be combined with {key.section}"
    parameter = REGISTRY.parameters.get(name)
    return f"{name} has no effect: {parameter.no_effect_reason}" if parameter and parameter.effect == "none" else ""


def _sections(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(full.rpartition(".")[0] for full in names))

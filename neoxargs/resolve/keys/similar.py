"""Names like an unknown key: the same word in another section, a similar word here, a similar word anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from neoxargs.problems import SET, close_matches, listed
from neoxargs.registry import REGISTRY
from neoxargs.resolve.keys.match import Key, Match, keys_of
from neoxargs.resolve.keys.other_programs import in_sections

#: Words up to this length are like too many.
SHORT_WORD = 6
#: A word that stands in more places than this is told with its sections alone.
MANY_PLACES = 3


def same_word(key: Key) -> Match | None:
    """The same word, or what another program means by it, in this section or in others."""
    names = _in_other_words(key) or _in_other_sections(key)
    if len(names) > MANY_PLACES:
        return Match("same word", f"it is a key of these sections: {listed(sorted(_sections(names)), most=8)}")
    return Match("same word", _moved(names, key), tuple(names)) if names else None


def similar_here(key: Key) -> Match | None:
    """A similar word among the names that are legal where the key stands, old spellings included."""
    here = {word: full for word, full in keys_of(key.section).items() if not key.is_section or _takes_keys(full)}
    words = _similar(key.word, here)
    if not words:
        return None
    hint = f"did you mean {listed(_with_old_spelling(word, here[word]) for word in words)}?"
    return Match("similar", hint, tuple(here[word] for word in words), words[0] if len(words) == 1 else "")


def similar_anywhere(key: Key) -> Match | None:
    """A very similar word in another section."""
    if not key.section and len(key.word) <= SHORT_WORD:
        return None
    names = [*REGISTRY.sections, *([] if key.is_section else REGISTRY.parameters)]
    everywhere = {full.rpartition(".")[2]: full for full in names if key.section or full.count(".") <= 1}
    found = [everywhere[word] for word in _similar(key.word, everywhere, 0.85)]
    return Match("similar", _moved(found, key), tuple(found)) if found else None


def _in_other_words(key: Key) -> list[str]:
    """What is meant inside a section by another program's word for it: `learning_rate` in `optimizer.params`."""
    if not key.section or not (meant := in_sections(key.word)):
        return []
    inside = (f"{key.section}.{meant}", f"{key.section}.params.{meant}")
    return [full for full in REGISTRY.parameters if full in inside]


def _in_other_sections(key: Key) -> list[str]:
    """The same word in other sections; the nearer the section, the earlier."""
    section, word = key.section, key.word
    names = [*REGISTRY.parameters, *REGISTRY.sections]
    same = [full for full in names if full.rpartition(".")[2] == word and full.rpartition(".")[0] != section]
    if word in same:
        return [word]
    if not section:  # what lies deep in a section is not what somebody at the top has in mind
        same = [full for full in same if full.count(".") <= 2]
    below = [full for full in same if full.startswith(f"{section}.")] if section else []
    return below or sorted(same, key=lambda full: full.count("."))


def _takes_keys(full: str) -> bool:
    """Can what belongs there be written as a section?"""
    return full in REGISTRY.sections or "dict" in REGISTRY.parameters[full].annotation


def _similar(word: str, choices: Mapping[str, str], alike: float = 0.75) -> list[str]:
    lower = {choice.lower(): choice for choice in choices}
    return [lower[choice] for choice in close_matches(word.lower(), lower, alike=alike)]


def _with_old_spelling(word: str, full: str) -> str:
    present = full.rpartition(".")[2]
    return word if word == present else f"{present} (old name: {word})"


def _moved(names: list[str], key: Key) -> str:
    """The question after names that may stand elsewhere, with the place where each would."""
    sections = _sections(names)
    if key.section and sections == [key.section]:
        return f"did you mean {listed(full.rpartition('.')[2] for full in names)}?"
    hint = f"did you mean {listed(names)}?"
    if key.where.file == SET or len(sections) != 1:
        return hint
    return hint + (f" write it inside `{sections[0]}:`" if sections[0] else " write it at the top level")


def _sections(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(full.rpartition(".")[0] for full in names))

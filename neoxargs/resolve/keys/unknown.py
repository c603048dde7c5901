"""A key that is no parameter: which one was probably meant, and where it is written.

In this order: another program's name for a parameter, the same word somewhere else (`stage` at the top level), a
similar word among the names that are legal here (retired spellings included), a similar word anywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from neoxargs.problems import SET, Place, Problem, listed, near
from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve.keys.foreign import ours
from neoxargs.resolve.yaml.line_patterns import LEFT_OUT
from neoxargs.resolve.yaml.nodes import Entry
from neoxargs.resolve.yaml.nodes import Mapping as Section


def unknown(name: str, where: Place, written: str, is_section: bool = False) -> tuple[Problem, list[str]]:
    """The problem, and the parameters or sections that it suggests.

    name: dotted and spelt with `_`; written: the key as the user has it.
    """
    section, _, word = name.rpartition(".")
    what = stranger(name, where, written, is_section).what
    if slip := _slip(written):
        return Problem(what, where, slip), [meant for meant in [_clean(name.partition(":")[0])] if REGISTRY.find(meant)]
    if not section and (hint := _another_programs(word)):
        return Problem(what, where, hint), [meant] if (meant := ours(word)) else []
    found = _under(section, word) or _elsewhere(section, word)
    if len(found) > 3:
        return Problem(what, where, f"it is written inside a section: {listed(_sections(found), most=8)}"), []
    if found:
        return Problem(what, where, _moved(found, where, section)), found
    here = {key: full for key, full in _level(section).items() if not is_section or _takes_keys(full)}
    found = _alike(word, here)
    if found:
        return Problem(what, where, f"did you mean {listed(_told(key, here[key]) for key in found)}?"), [
            here[key] for key in found
        ]
    names = [*REGISTRY.sections, *([] if is_section else REGISTRY.parameters)]
    everywhere = {full.rpartition(".")[2]: full for full in names if section or full.count(".") <= 1}
    found = [everywhere[key] for key in _alike(word, everywhere, 0.85)] if section or len(word) > SHORT else []
    return Problem(what, where, _moved(found, where, section) if found else _legal(section)), found


def stranger(name: str, where: Place, written: str, is_section: bool = False) -> Problem:
    """The same, without a thought about what was meant."""
    section, key = name.rpartition(".")[0], _shown(written)
    if section in REGISTRY.sections:
        return Problem(f"{section} has no key {key.rpartition('.')[2]}", where)
    return Problem(f"{key} is not a {'section' if is_section else 'parameter'}", where)


def _shown(written: str) -> str:
    return written if re.fullmatch(r"[\w.-]+", written) else json.dumps(written, ensure_ascii=False)


def beside(problem: Problem, name: str, first: Place) -> Problem:
    """The problem of a key, where the parameter that it looks like (or means) is written as well."""
    word, _, rest = problem.what.partition(" ")
    if rest.startswith("is not a section;"):
        return problem
    is_guess = problem.hint == f"did you mean {name}?" and rest == "is not a parameter"
    if is_guess and not near(normal(word), [name], alike=0.85):  # two keys, not one and its misspelling
        return replace(problem, hint=NOBODYS)
    hint = f"did you mean {name}? it is already written: take one of the two out"
    return replace(problem, hint=hint, also=(first,))


def is_known(name: str) -> bool:
    """Is it a parameter or a section, by its dotted name?"""
    return name in REGISTRY.sections or REGISTRY.find(name) is not None


def of_the_top(name: str, entry: Entry) -> list[str]:
    """The parameters of the top level in a section that somebody made up, such as `model:`; half its keys at least."""
    if "." in name or not isinstance(entry.value, Section):
        return []
    keys = [inner.key for inner in entry.value.entries]
    found = [parameter.name for key in keys if (parameter := REGISTRY.find(key)) and "." not in parameter.name]
    return found if 2 * len(found) >= len(keys) and "enabled" not in keys else []


def grouped(entry: Entry, inside: Sequence[str]) -> Problem:
    """Told of that section."""
    hint = f"take this line out, and the indentation of {listed(inside, 'and', most=3)} below it"
    return Problem(f"{entry.key} is not a section; what is in it stands at the top level", entry.place, hint)


def outdented(section: str, entry: Entry) -> Problem:
    """A key of the section whose name stands above it with nothing in it."""
    hint = f"indent it, with the others of {section}, by two spaces"
    return Problem(f"{entry.key} belongs into the section {section} above it", entry.place, hint)


def is_comment(key: str) -> bool:
    """Is it the key of a remark, as people write into JSON, which has no comments?"""
    return bool(re.fullmatch(r"//.*|[_#$]*(comment|note|remark)s?([_\d].*)?", key, re.I)) and not is_known(normal(key))


def _slip(written: str) -> str:
    """What is wrong with the letters of a key that would be right without them."""
    clean = _clean(written)
    if is_comment(written):
        return "begin a remark with `#`, without a key"
    if re.fullmatch(r"\.\.+|…", written):
        return LEFT_OUT
    if re.match(r"[\w-]+:\S", written):
        key, _, value = written.partition(":")
        return f"a space is missing behind the colon: write `{key}: {value}`"
    if clean == written or not re.fullmatch(r"[\w.-]+", clean):
        return ""
    return f"write `{clean}`, without the {' and '.join(_letters(written))} in it"


def _letters(written: str) -> list[str]:
    """Those of a key that no key has, by code where they cannot be seen."""
    odd = dict.fromkeys(letter for letter in written if not re.match(r"[\w.-]", letter))
    return [f"`{letter}`" if letter.isprintable() and letter != " " else f"U+{ord(letter):04X}" for letter in odd]


def _clean(written: str) -> str:
    return re.sub(r"[^\w.-]", "", written)


def _another_programs(word: str) -> str:
    if meant := ours(word):
        return f"here it is {meant}: {REGISTRY.parameters[meant].brief}"
    from neoxargs.registry.history import SEED, introduced, removed  # only a mistake needs them
    from neoxargs.resolve.keys.forks import whose

    if gone := removed(word):
        return f"GPT-NeoX had it from {introduced(word) or SEED} to {gone}; take it out"
    return whose(word)


def _elsewhere(section: str, word: str) -> list[str]:
    """The same word in other sections; the nearer the section, the earlier."""
    names = [*REGISTRY.parameters, *REGISTRY.sections]
    same = [full for full in names if full.rpartition(".")[2] == word and full.rpartition(".")[0] != section]
    inside = f"{section}." if section else ""
    if word in same:
        return [word]
    if not section:  # what lies deep in a section is not what somebody at the top has in mind
        same = [full for full in same if full.count(".") <= 2]
    below = [full for full in same if full.startswith(inside)] if section else []
    return below or sorted(same, key=lambda full: full.count("."))


def _under(section: str, word: str) -> list[str]:
    """What is meant inside a section by another program's word for it: `learning_rate` in `optimizer.params`."""
    meant = WITHIN.get(word.lower()) or ours(word.lower())
    names = REGISTRY.parameters if section and meant else ()
    return [full for full in names if re.fullmatch(rf"{section}\.(params\.)?{meant}", full)]


#: Words for what stands in the `params` of an optimizer.
WITHIN = {"beta1": "betas", "beta2": "betas", "adam_beta1": "betas", "adam_beta2": "betas",
          "epsilon": "eps", "adam_eps": "eps", "adam_epsilon": "eps", "wd": "weight_decay"}  # fmt: skip


def _takes_keys(full: str) -> bool:
    """Can what belongs there be written as a section?"""
    return full in REGISTRY.sections or "dict" in REGISTRY.parameters[full].annotation


def _level(section: str) -> dict[str, str]:
    """Key -> parameter for every key that may be written in a section."""
    names = {full: full for full in [*REGISTRY.parameters, *REGISTRY.sections]}
    names |= {old: parameter.name for old, parameter in REGISTRY.renamed.items()}
    return {key.rpartition(".")[2]: full for key, full in names.items() if key.rpartition(".")[0] == section}


def _alike(word: str, choices: Mapping[str, str], alike: float = 0.75) -> list[str]:
    lower = {choice.lower(): choice for choice in choices}
    return [lower[choice] for choice in near(word.lower(), lower, alike=alike)]


def _told(key: str, full: str) -> str:
    present = full.rpartition(".")[2]
    return key if key == present else f"{present} (an older spelling is {key})"


def _moved(found: list[str], where: Place, section: str) -> str:
    sections = _sections(found)
    if section and sections == [section]:
        return f"did you mean {listed(full.rpartition('.')[2] for full in found)}?"
    hint = f"did you mean {listed(found)}?"
    if where.file == SET or len(sections) != 1:
        return hint
    return hint + (f" it is written inside `{sections[0]}:`" if sections[0] else " it stands at the top level")


def _sections(found: list[str]) -> list[str]:
    return list(dict.fromkeys(full.rpartition(".")[0] for full in found))


def _legal(section: str) -> str:
    keys = list(_level(section)) if section else []
    return f"its keys: {listed(keys, 'and')}" if keys else NOBODYS


#: Words up to this length are like too many.
SHORT = 6
#: What to do with a key that no parameter is like.
NOBODYS = "neither GPT-NeoX nor DeepSpeed has it: take it out, or declare it in a plugin (docs/parameters.md lists all)"

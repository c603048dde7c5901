"""Find parameters by one of their choices, by a word in their name or, if there is none, in their description."""

from __future__ import annotations

import re
from pathlib import PurePath

from neoxargs.registry import REGISTRY, normal
from neoxargs.registry.types import words_of
from neoxargs.resolve.keys.other_programs import counterpart, our_choice

MAX_RESULTS = 15
#: Shorter words are not searched, because too many names contain them.
MIN_LENGTH = 3


def is_file(word: str) -> bool:
    """Whether a word looks like the name of a configuration file."""
    return PurePath(word).suffix in (".yml", ".yaml", ".json") or "/" in word


def by_last_part(word: str) -> dict[str, str]:
    """Return name -> description of the parameter that another program calls `word`, else of all that end in it.

    Names of other programs come first, as for keys in a file: `data_efficiency.data_sampling.num_epochs` exists, but
    `num_epochs` usually means `train_epochs`.
    """
    names = [equivalent] if (equivalent := counterpart(word)) else names_ending_in(word)
    return {name: REGISTRY.parameters[name].description for name in names}


def names_ending_in(word: str) -> list[str]:
    """Return the parameters whose last part is the word: `betas` -> `optimizer.params.betas`."""
    return [name for name in REGISTRY.parameters if name.rpartition(".")[2] == word]


def by_question(text: str) -> dict[str, str]:
    """Return name -> description for the word of a text that the fewest names contain: `lora` in "how to use lora"."""
    words = {name: {*re.split("[._]", name.lower())} for name in REGISTRY.parameters}
    asked = [word for word in normal(text).lower().split() if len(word) >= MIN_LENGTH]
    found = [[name for name in words if word in words[name]] for word in asked]
    names = min(filter(None, found), key=len, default=[])
    return {name: REGISTRY.parameters[name].description for name in names}


def by_word(word: str) -> dict[str, str]:
    """Return name -> description of all that have the word as a choice, or in their name, the best matches first.

    Only if there are none are descriptions searched.
    """
    if described := by_choice(word) | by_name(word):
        return described
    word = normal(word).lower()
    texts = {name: parameter.description for name, parameter in REGISTRY.parameters.items()}
    found = {name: text for name, text in texts.items() if word in normal(text.lower()).replace(" ", "_")}
    return found if len(word) >= MIN_LENGTH else {}


def by_choice(word: str) -> dict[str, str]:
    """Return name -> description of all that have this choice, or one that another program calls so."""
    choice = our_choice(word) or word.lower()
    parameters = REGISTRY.parameters.values()
    return {each.name: each.description for each in parameters if choice in map(str.lower, words_of(each.type))}


def by_name(word: str) -> dict[str, str]:
    """Return name -> description of all whose name contains the word.

    The order is: sections, complete words of a name, parts of the last part of a name, any part of a name.
    """
    word = normal(word).lower()
    if len(word) < MIN_LENGTH:
        return {}
    described = {name: "a section" for name in REGISTRY.sections if word in name.rpartition(".")[2].lower()}
    names = {name: parameter.description for name, parameter in REGISTRY.parameters.items()}
    # `|=` leaves a name that is in the dictionary already at its place, so the best match decides the order.
    described |= {name: text for name, text in names.items() if word in re.split("[._]", name.lower())[1:]}
    described |= {name: text for name, text in names.items() if word in name.rpartition(".")[2].lower()}
    return described | {name: text for name, text in names.items() if word in name.lower()}

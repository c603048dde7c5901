"""A word that is no parameter's name: the parameters that have it in their name, or else in their description."""

from __future__ import annotations

import re
from pathlib import PurePath

from neoxargs.registry import REGISTRY, normal
from neoxargs.resolve.keys.other_programs import counterpart

MOST = 15
#: Shorter words are in nearly every name.
SHORTEST = 3


def is_file(word: str) -> bool:
    """Is this rather a configuration than a parameter?"""
    return PurePath(word).suffix in (".yml", ".yaml", ".json") or "/" in word


def by_last_part(word: str) -> dict[str, str]:
    """Name -> its description: the parameter that another program calls so, or else all whose last part it is.

    In this order, as for a key at the top level of a file: there is a `num_epochs` deep inside `data_efficiency`, and
    whoever asks for it means `train_epochs`.
    """
    names = [meant] if (meant := counterpart(word)) else called(word)
    return {name: REGISTRY.parameters[name].description for name in names}


def called(word: str) -> list[str]:
    """The parameters whose last part it is."""
    return [name for name in REGISTRY.parameters if name.rpartition(".")[2] == word]


def by_word(word: str) -> dict[str, str]:
    """Name -> its description; sections first, then parameters that have it in the last part of their name.

    A whole word comes before a part of one.
    """
    word = normal(word).lower()
    if len(word) < SHORTEST:
        return {}
    described = {name: "a section" for name in REGISTRY.sections if word in name.rpartition(".")[2].lower()}
    names = {name: parameter.description for name, parameter in REGISTRY.parameters.items()}
    described |= {name: text for name, text in names.items() if word in re.split("[._]", name.lower())[1:]}
    described |= {name: text for name, text in names.items() if word in name.rpartition(".")[2].lower()}
    described |= {name: text for name, text in names.items() if word in name.lower()}
    if described:
        return described
    return {name: text for name, text in names.items() if word in normal(text.lower()).replace(" ", "_")}

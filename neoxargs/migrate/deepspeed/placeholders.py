"""Values that a script inserts into a DeepSpeed JSON, such as `$BATCH` or `CONFIG_BATCH_SIZE`: known from `--var`, or
left out of the new file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from neoxargs.base.problems import Place, Problem
from neoxargs.migrate.deepspeed.lenient_json import Block, is_placeholder
from neoxargs.registry import REGISTRY
from neoxargs.resolve.yaml.nodes import Entry, Node, Scalar
from neoxargs.resolve.yaml.nodes import Mapping as Tree

#: A shell variable in a string.
_VARIABLE = re.compile(r"\$(\w|\{\w)")
#: A word in quotes that a template replaces, such as `CL_CLUSTER_PATH`.
_WORD = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Za-z0-9]+)+")
_NAME = re.compile(r"\$\{?(\w+)|^([A-Z]\w*)$")


def without_placeholders(block: Block) -> Block:
    """Remove the values that are only known when the script runs, with a warning and a comment for each of them."""
    found = _Placeholders(is_template=any(not s.quoted and is_placeholder(s.text) for s in _texts(block.tree)))
    tree = found.rest(block.tree, "")
    to_do = [f"TODO: set {key} ({text} in DeepSpeed's JSON)." for key, text, _ in found.removed]
    warnings = [*block.warnings, *(_problem(*removed) for removed in found.removed)]
    parameters = [(REGISTRY.find(key), key) for key, _, _ in found.removed]
    removed = [parameter.name if parameter else key for parameter, key in parameters]
    return replace(block, tree=tree, warnings=warnings, to_do=to_do, removed=removed)


class _Placeholders:
    """Removes placeholders. removed: the key, the text and the place of each.

    is_template: whether a script replaces words of the file, so that a word in quotes may be one of them.
    """

    def __init__(self, is_template: bool) -> None:
        self.is_template = is_template
        self.removed = list[tuple[str, str, Place]]()

    def rest(self, tree: Tree, path: str) -> Tree:
        """Return the tree without placeholders. A misspelt key stays, and is reported later."""
        entries = list[Entry]()
        for entry in tree.entries:
            key, place = path + entry.key, entry.value.place
            text = self.placeholder(Scalar(entry.key, entry.key, True, entry.place)) if _is_free(path) else None
            if not isinstance(entry.value, Tree):
                text = text or self.placeholder(entry.value)
            if text and (REGISTRY.find(key) is not None or _is_free(key)):
                # The name of an entry is a placeholder: there is no key to set, only the section that has it.
                self.removed.append((path.rstrip(".") if text == entry.key else key, text, place))
            elif isinstance(entry.value, Tree):
                entries.append(entry._replace(value=self.rest(entry.value, f"{key}.")))
            else:
                entries.append(entry)
        return Tree(entries, tree.place)

    def placeholder(self, node: Node) -> str | None:
        """Return the text of the first placeholder in a value, or None."""
        return next((scalar.text for scalar in _texts(node) if self.is_placeholder(scalar)), None)

    def is_placeholder(self, scalar: Scalar) -> bool:
        if not scalar.quoted:
            return is_placeholder(scalar.text)
        is_word = self.is_template and _WORD.fullmatch(scalar.text) is not None
        return is_word or _VARIABLE.search(scalar.text) is not None


def _texts(node: Node) -> Iterator[Scalar]:
    """Yield every text in a value."""
    if isinstance(node, Scalar):
        if isinstance(node.value, str):
            yield node
        return
    for item in [entry.value for entry in node.entries] if isinstance(node, Tree) else node.items:
        yield from _texts(item)


def _is_free(path: str) -> bool:
    """Return whether a key is inside a parameter that is a mapping, such as a section whose keys are free."""
    parts = path.split(".")
    return any(REGISTRY.find(".".join(parts[:end])) is not None for end in range(1, len(parts)))


def _problem(key: str, text: str, place: Place) -> Problem:
    what = f"the value of {text} is unknown, so {key} in DeepSpeed's JSON is left out"
    names = dict.fromkeys(one or other for one, other in _NAME.findall(text))
    hint = f"add {' '.join(f'--var {name}=VALUE' for name in names)}" if names else f"set {key} in the new file"
    return Problem(what, place, hint, severity="warning", id="migrate-variable-unset", about=(key,))

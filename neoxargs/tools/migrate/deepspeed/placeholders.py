"""Values that a script inserts into a DeepSpeed JSON, such as `$BATCH` or `CONFIG_BATCH_SIZE`: known from `--var`, or
left out of the new file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from neoxargs.problems import Problem
from neoxargs.registry import REGISTRY
from neoxargs.resolve.yaml.nodes import Entry, Scalar
from neoxargs.resolve.yaml.nodes import Mapping as Tree
from neoxargs.tools.migrate.deepspeed.lenient_json import Block, is_placeholder

#: A shell variable in a string.
_VARIABLE = re.compile(r"\$(\w|\{\w)")
_NAME = re.compile(r"\$\{?(\w+)|^([A-Z]\w*)$")


def without_placeholders(block: Block) -> Block:
    """Remove the values that are only known when the script runs, with a warning and a comment for each of them."""
    removed = list(_removed(block.tree, ""))
    to_do = [f"TODO: set {key} ({_text(entry)} in DeepSpeed's JSON)." for key, entry in removed]
    warnings = [*block.warnings, *(_problem(key, entry) for key, entry in removed)]
    return replace(block, tree=_rest(block.tree, ""), warnings=warnings, to_do=to_do)


def _is_removed(key: str, entry: Entry) -> bool:
    node = entry.value
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or REGISTRY.find(key) is None:
        return False
    return _VARIABLE.search(node.text) is not None if node.quoted else is_placeholder(node.text)


def _rest(tree: Tree, path: str) -> Tree:
    entries = [entry for entry in tree.entries if not _is_removed(path + entry.key, entry)]
    return Tree([_with_rest(entry, path) for entry in entries], tree.place)


def _with_rest(entry: Entry, path: str) -> Entry:
    if not isinstance(entry.value, Tree):
        return entry
    return entry._replace(value=_rest(entry.value, f"{path}{entry.key}."))


def _removed(tree: Tree, path: str) -> Iterator[tuple[str, Entry]]:
    for entry in tree.entries:
        if isinstance(entry.value, Tree):
            yield from _removed(entry.value, f"{path}{entry.key}.")
        elif _is_removed(path + entry.key, entry):
            yield path + entry.key, entry


def _text(entry: Entry) -> str:
    assert isinstance(entry.value, Scalar)
    return entry.value.text


def _problem(key: str, entry: Entry) -> Problem:
    text = _text(entry)
    what = f"the value of {text} is unknown, so {key} in DeepSpeed's JSON is left out"
    names = dict.fromkeys(one or other for one, other in _NAME.findall(text))
    hint = f"add {' '.join(f'--var {name}=VALUE' for name in names)}" if names else f"set {key} in the new file"
    return Problem(what, entry.value.place, hint, severity="warning", id="migrate-variable-unset", about=(key,))

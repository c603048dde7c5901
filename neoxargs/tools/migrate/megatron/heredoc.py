"""A DeepSpeed JSON in a here-document of the script (`cat <<EOT > ds_config.json`), as in Megatron-DeepSpeed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from neoxargs.problems import Place, Problem
from neoxargs.resolve import Text
from neoxargs.resolve.yaml.nodes import Mapping, Scalar
from neoxargs.tools.migrate.deepspeed.convert import settings_of
from neoxargs.tools.migrate.deepspeed.lenient_json import Block, blocks
from neoxargs.tools.migrate.deepspeed.versions import chosen, versions
from neoxargs.tools.migrate.yaml_write import Setting

#: A variable without a known value; it is put in quotes to be read as a string.
_VARIABLE = re.compile(r"([:\[,]\s*)(\$(?:\w+|\{\w+\}))")


def heredoc_settings(text: Text, number: int | None) -> tuple[dict[str, Setting], dict[str, Place], list[Problem]]:
    """Return the settings of a here-document, the place of each, and warnings. Raises Problems.

    number: which of several configurations in it to read, counted from 1.
    """
    read = blocks(text._replace(text=_VARIABLE.sub(r'\1"\2"', text.text)))
    unset = [problem for block in read for problem in _unset(block.tree)]
    known = [Block(_without_unset(block.tree), block.settings, block.comments, block.warnings) for block in read]
    offered = versions(known)
    if not offered:
        return {}, {}, []
    version = chosen(offered, number, text.name)
    settings, _ = settings_of(version)
    places = {name: value.source.where for name, value in version.draft.values.items() if value.source.where}
    return settings, places, unset


def _without_unset(tree: Mapping) -> Mapping:
    """Return the tree without values that are only known when the script runs."""
    entries = [entry for entry in tree.entries if not _is_unset(entry.value)]
    return Mapping(
        [e._replace(value=_without_unset(e.value)) if isinstance(e.value, Mapping) else e for e in entries], tree.place
    )


def _unset(tree: Mapping) -> Iterator[Problem]:
    for entry in tree.entries:
        if isinstance(entry.value, Mapping):
            yield from _unset(entry.value)
        elif isinstance(entry.value, Scalar) and _is_unset(entry.value):
            what = f"the value of {entry.value.text} is unknown, so {entry.key} in DeepSpeed's JSON is left out"
            hint = _hint(entry.value.text)
            yield Problem(what, entry.value.place, hint, severity="warning", id="migrate-variable-unset")


def _hint(text: str) -> str:
    names = dict.fromkeys(re.findall(r"\$\{?(\w+)", text))
    return f"add {' '.join(f'--var {name}=VALUE' for name in names)}" if names else "set the parameter in the new file"


def _is_unset(node: object) -> bool:
    return isinstance(node, Scalar) and "$" in node.text

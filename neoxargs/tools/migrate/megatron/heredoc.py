"""DeepSpeed's JSON that a script writes itself (`cat <<EOT > ds_config.json`), as Megatron-DeepSpeed's scripts do."""

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

#: A variable that nobody knows, as a value: it is read like text.
_BARE = re.compile(r"([:\[,]\s*)(\$(?:\w+|\{\w+\}))")


def heredoc_settings(text: Text, number: int | None) -> tuple[dict[str, Setting], dict[str, Place], list[Problem]]:
    """The settings of a here-document, where each is written, and what there is to say; raises Problems.

    number: of several configurations in it the one that is meant.
    """
    written = blocks(text._replace(text=_BARE.sub(r'\1"\2"', text.text)))
    unset = [problem for block in written for problem in _unset(block.tree)]
    certain = [Block(_certain(block.tree), block.settings, block.comments, block.warnings) for block in written]
    offered = versions(certain)
    if not offered:
        return {}, {}, []
    version = chosen(offered, number, text.name)
    settings, _ = settings_of(version)
    places = {name: value.source.where for name, value in version.draft.values.items() if value.source.where}
    return settings, places, unset


def _certain(tree: Mapping) -> Mapping:
    """Without what only running the script would tell."""
    entries = [entry for entry in tree.entries if not _is_unset(entry.value)]
    return Mapping(
        [e._replace(value=_certain(e.value)) if isinstance(e.value, Mapping) else e for e in entries], tree.place
    )


def _unset(tree: Mapping) -> Iterator[Problem]:
    for entry in tree.entries:
        if isinstance(entry.value, Mapping):
            yield from _unset(entry.value)
        elif isinstance(entry.value, Scalar) and _is_unset(entry.value):
            what = f"the script does not say what {entry.value.text} is, which DeepSpeed's {entry.key} needs"
            hint = "add --var NAME=VALUE"
            yield Problem(what, entry.value.place, hint, severity="warning", id="migrate-variable-unset")


def _is_unset(node: object) -> bool:
    return isinstance(node, Scalar) and "$" in node.text

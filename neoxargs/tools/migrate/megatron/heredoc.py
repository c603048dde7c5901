"""DeepSpeed's JSON that a script writes itself (`cat <<EOT > ds_config.json`), as Megatron-DeepSpeed's scripts do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from neoxargs.problems import Place, Problem
from neoxargs.resolve import Text
from neoxargs.resolve.yaml.nodes import Mapping, Scalar
from neoxargs.tools.migrate.deepspeed.convert import Written, chosen, settings_of, versions
from neoxargs.tools.migrate.deepspeed.lenient_json import Block, blocks
from neoxargs.tools.migrate.yaml_write import Setting

#: A variable that nobody knows, as a value: it is read like text.
_BARE = re.compile(r"([:\[,]\s*)(\$(?:\w+|\{\w+\}))")


def here_settings(text: Text, number: int | None) -> tuple[dict[str, Setting], dict[str, Place], list[Problem]]:
    """The settings of a here-document, where each is written, and what there is to say; raises Problems.

    number: of several configurations in it the one that is meant.
    """
    found = blocks(text._replace(text=_BARE.sub(r'\1"\2"', text.text)))
    left_open = [problem for block in found for problem in _left_open(block.tree)]
    kept = [Block(_known(block.tree), block.settings, block.comments, block.warnings) for block in found]
    offered = versions(kept)
    if not offered:
        return {}, {}, []
    version = chosen(offered, number, text.name)
    result = Written("")
    settings = dict(settings_of(version, result))
    places = {name: value.source.where for name, value in version.draft.values.items() if value.source.where}
    return settings, places, [*left_open, *result.problems]


def _known(tree: Mapping) -> Mapping:
    """Without what only running the script would tell."""
    entries = [entry for entry in tree.entries if not _is_open(entry.value)]
    return Mapping(
        [e._replace(value=_known(e.value)) if isinstance(e.value, Mapping) else e for e in entries], tree.place
    )


def _left_open(tree: Mapping) -> Iterator[Problem]:
    for entry in tree.entries:
        if isinstance(entry.value, Mapping):
            yield from _left_open(entry.value)
        elif isinstance(entry.value, Scalar) and _is_open(entry.value):
            what = f"the script does not say what {entry.value.text} is, which DeepSpeed's {entry.key} needs"
            yield Problem(what, entry.value.place, "add --var NAME=VALUE", severity="warning")


def _is_open(node: object) -> bool:
    return isinstance(node, Scalar) and "$" in node.text

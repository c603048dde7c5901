"""A DeepSpeed JSON in a here-document of the script (`cat <<EOT > ds_config.json`), as in Megatron-DeepSpeed."""

from __future__ import annotations

from neoxargs.base.files import Text
from neoxargs.base.problems import Place
from neoxargs.migrate.deepspeed.convert import settings_of
from neoxargs.migrate.deepspeed.lenient_json import Block, blocks
from neoxargs.migrate.deepspeed.placeholders import without_placeholders
from neoxargs.migrate.deepspeed.versions import chosen, versions
from neoxargs.resolve.yaml.nodes import Mapping
from neoxargs.resolve.yaml.write import Setting


def heredoc_settings(text: Text, number: int | None) -> tuple[dict[str, Setting], dict[str, Place], Block]:
    """Return the settings of a here-document, the place of each, and what was read. Raises Problems.

    number: which of several configurations in it to read, counted from 1.
    """
    offered = versions([without_placeholders(block) for block in blocks(text)])
    if not offered:
        return {}, {}, Block(Mapping([]))
    version = chosen(offered, number, text.name)
    settings, _ = settings_of(version)
    places = {name: value.source.where for name, value in version.draft.values.items() if value.source.where}
    return settings, places, version.block

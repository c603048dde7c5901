"""A DeepSpeed JSON in a here-document of the script (`cat <<EOT > ds_config.json`), as in Megatron-DeepSpeed."""

from __future__ import annotations

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem
from neoxargs.migrate.deepspeed.convert import settings_of
from neoxargs.migrate.deepspeed.lenient_json import blocks
from neoxargs.migrate.deepspeed.placeholders import without_placeholders
from neoxargs.migrate.deepspeed.versions import chosen, versions
from neoxargs.resolve.yaml.write import Setting


def heredoc_settings(text: Text, number: int | None) -> tuple[dict[str, Setting], dict[str, Place], list[Problem]]:
    """Return the settings of a here-document, the place of each, and warnings. Raises Problems.

    number: which of several configurations in it to read, counted from 1.
    """
    offered = versions([without_placeholders(block) for block in blocks(text)])
    if not offered:
        return {}, {}, []
    version = chosen(offered, number, text.name)
    settings, _ = settings_of(version)
    places = {name: value.source.where for name, value in version.draft.values.items() if value.source.where}
    return settings, places, version.block.warnings

"""The configuration that GPT-NeoX stored with a checkpoint, compared with that of a run that continues it.

The shapes of tensors do not show a rotary base, an activation or an epsilon; these files do.
"""

from __future__ import annotations

from collections.abc import Iterator

from neoxargs.base.problems import Problem, Problems, listed
from neoxargs.config.config import Config
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.resolve import complete
from neoxargs.resolve.compare.apart import SHOWN_BY_SHAPES, names
from neoxargs.resolve.compare.continuing import level_of
from neoxargs.resolve.compare.differences import differences, same_function
from neoxargs.resolve.rules.synonyms import yaml_form


def other_model(config: Config, contents: Contents) -> Iterator[Problem]:
    """Yield a warning that lists the model's parameters whose values in the saved configuration differ.

    Whether attention and MLP are parallel decides how the biases of several ranks are joined, so that is an error.
    """
    saved = _saved_configuration(contents, config.dialect.name if config.dialect else None)
    if saved is None:
        return
    function = {p.name for p in REGISTRY.parameters.values() if level_of(p) in ("weights", "adapted")}
    apart = (REGISTRY.parameters.keys() - function) | names(SHOWN_BY_SHAPES)
    found = {
        each.name: [yaml_form(value) for value in each.values]
        for each in differences(saved, config, apart, same_function)
        if any(each.is_read) and config.get(each.name) is not ABSENT
    }
    if "gpt_j_residual" in found and contents.files.tensor_ranks > 1:
        value, ours = found["gpt_j_residual"]
        what = f"load ({contents.folder}): the checkpoint was written with gpt_j_residual {value}"
        what += f", but this configuration has {ours}"
        place = config.place("gpt_j_residual") or config.place("load")
        yield Problem(
            what, place, f"set gpt_j_residual: {value}", id="checkpoint-other-model", about=("load", "gpt_j_residual")
        )
        return
    if found:
        pairs = [f"{name} (saved {theirs}, here {ours})" for name, (theirs, ours) in found.items()]
        what = f"load ({contents.folder}): the model differs from the configuration saved with the checkpoint: "
        hint = f"compare with {listed(map(str, contents.configurations), 'and')}"
        places = [place for name in found if (place := config.place(name))]
        first, *others = [*places, config.place("load")]
        yield Problem(
            what + listed(pairs, "and"), first, hint, also=tuple(place for place in others if place),
            severity="warning", id="checkpoint-other-model", about=("load", *found),
        )  # fmt: skip


def _saved_configuration(contents: Contents, dialect: str | None) -> Config | None:
    """Return the resolved configuration of the run that wrote the checkpoint; None if it is missing or invalid."""
    if not contents.configurations:
        return None
    try:
        # GPT-NeoX's files name no dialect, and this run's is the best guess: different defaults would look like
        # differences.
        return complete(contents.draft.with_values({"dialect": dialect} if dialect else {}), contents.files.ranks)
    except Problems:
        return None

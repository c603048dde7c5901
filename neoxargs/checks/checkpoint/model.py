"""Check which checkpoint in `load` the run continues from, and what has changed since."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neoxargs.base.problems import Problem, listed
from neoxargs.config.config import Config
from neoxargs.facts.data import path_list
from neoxargs.facts.model import is_reward_model
from neoxargs.facts.objectives import needs_reference_model
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.files.checkpoints.checksums import Digest
from neoxargs.files.checkpoints.optimizer_state import trains_the_same_part
from neoxargs.files.token_files.checksums import known_digests
from neoxargs.files.token_files.index import digest
from neoxargs.files.token_files.sources import files_of, sources
from neoxargs.resolve.rules.rotary import rotary_positions_reach_seq_length
from neoxargs.resolve.yaml.nodes import format_node, node_of

if TYPE_CHECKING:
    from neoxargs.resolve.compare.continuing import Level
    from neoxargs.resolve.compare.differences import Difference


def other_model(config: Config, checkpoint: Path | None) -> Iterator[Problem]:
    """Yield an error for each parameter whose value the weights do not have, and a warning with the adapted ones.

    Most of the errors would go unnoticed: the weights fit, but compute something else.
    """
    found = _changes(config, checkpoint)
    for change in found["weights"]:
        yield _other_value(config, change, checkpoint)
    if adapted := found["adapted"]:
        names = [change.name for change in adapted]
        places = [place for name in (*names, "load") if (place := config.place(name))]
        what = f"the model differs from that of the checkpoint to be loaded ({checkpoint}): {_listed(adapted)}"
        hint = "the weights were trained with the old values; set those values again unless the change is intended"
        first, also = (places[0], tuple(places[1:])) if places else (None, ())
        yield Problem(what, first, hint, also, "warning", id="checkpoint-model-changed", about=(*names, "load"))


def unlearned_positions(config: Config) -> Iterator[Problem]:
    """Yield the warning of rotary-positions-reach-seq-length if only the checkpoint says what the model has learned."""
    checkpoint = checkpoint_to_read(config)
    saved = checkpoint_folder.configuration(checkpoint)
    longest, options = (saved or {}).get("max_position_embeddings"), config.rope_scaling
    rule, told = "rotary-positions-reach-seq-length", [warning.id for warning in config.warnings]
    if not isinstance(longest, int) or config.is_set("max_position_embeddings") or rule in told:
        return
    for found in rotary_positions_reach_seq_length(
        config.embedding.pos_emb, config.shape.seq_length, longest, options.rope_type, options.factor,
        options.original_max_position_embeddings,
    ):  # fmt: skip
        what = f"{found.sentence}, in the checkpoint to be loaded ({checkpoint})"
        place = config.place("seq_length")
        yield Problem(what, place, found.advice, (), "warning", id=rule, about=(*found.about, "load"))


def other_head(config: Config, checkpoint: Path | None) -> Iterator[Problem]:
    """Yield an error if the checkpoint of a reward model is not continued as one, or another as a reward model."""
    saved = checkpoint_folder.configuration(checkpoint)
    if saved is None or (ours := is_reward_model(config)) == (saved.get("train_impl") == "rm"):
        return
    if not ours:
        what, hint = "is of a reward model, which predicts no tokens", "set train_impl: rm, or load another checkpoint"
    elif not config.checkpoint.finetune:
        what, hint = "has no reward head", "set finetune: true to train a reward model starting from its weights"
    else:
        return
    about = ("load", "train_impl")
    place = config.place("load") or config.place("train_impl")
    yield Problem(f"load ({checkpoint}): the checkpoint {what}", place, hint, id="checkpoint-other-head", about=about)


def reward_models_write_nothing(config: Config) -> Iterator[Problem]:
    """Yield the error of a reward model in a program that reads what a model predicts."""
    if is_reward_model(config):
        what = "train_impl (rm) is a reward model, which predicts no tokens: it cannot generate text, be evaluated on "
        what += "text, or be exported"
        hint = "validation during training reports how often the preferred answer has the larger reward"
        yield Problem(what, config.place("train_impl"), hint, id="reward-model-writes-nothing", about=("train_impl",))


def changed_training(config: Config, checkpoint: Path | None) -> Iterator[Problem]:
    """Yield a warning with what else changes the result of a run that continues. A new run may differ in everything."""
    if checkpoint is None or config.checkpoint.finetune or not checkpoint_folder.iteration_of(checkpoint):
        return  # iteration 0: a model that was imported
    if not trains_the_same_part(config, checkpoint):
        return
    yield from _lost_reference(config, checkpoint)
    found, moved = _changes(config, checkpoint)["training"], list(_moved_samples(config, checkpoint))
    if not found and not moved:
        return
    if length := _other_length(config, checkpoint, moved):
        found = [*found, length]
    since = f"since the checkpoint to be loaded ({checkpoint}) was saved"
    what = f"the configuration has changed {since}" + (f": {_listed(found)}" if found else "")
    what += f"; {listed(moved, 'and', most=3)}" if moved else ""
    hint = "set the old values to continue the same run; `deepy diff` compares all values of two runs"
    about = (*(change.name for change in found), "load")
    yield Problem(what, config.place("load"), hint, severity="warning", id="checkpoint-training-changed", about=about)


def _moved_samples(config: Config, checkpoint: Path, iterations: int | None = None) -> Iterator[str]:
    """Yield which samples are read again or skipped. iterations: the length of the earlier run, if not as recorded."""
    if (saved := checkpoint_folder.configuration(checkpoint)) is not None:
        # Imported here, as in `_changes`.
        from neoxargs.checks.checkpoint.changes import recorded_config
        from neoxargs.checks.checkpoint.samples import moved_samples

        read = checkpoint_folder.position_of(checkpoint, config.get).next_sample
        before = recorded_config(saved if iterations is None else {**saved, "train_iters": iterations})
        yield from moved_samples(config, before, read)


def _other_length(config: Config, checkpoint: Path, moved: Sequence[str]) -> Difference | None:
    """Return the change of `train_iters` if it has a part in the samples that are moved."""
    now = config.training.train_iters
    before = (checkpoint_folder.configuration(checkpoint) or {}).get("train_iters")
    if not moved or before in (None, now) or moved == list(_moved_samples(config, checkpoint, now)):
        return None
    # Imported here, as in `_changes`.
    from neoxargs.resolve.compare.differences import Difference

    return Difference(("train_iters",), (before, now), config.is_set("train_iters"), (True, True))


def _lost_reference(config: Config, checkpoint: Path) -> Iterator[Problem]:
    """Yield an error if a run continues one without a reference model, but needs the log-probabilities of one."""
    saved = checkpoint_folder.configuration(checkpoint)
    if saved is None or saved.get("train_impl", "normal") != "normal" or not needs_reference_model(config):
        return
    what = f"load ({checkpoint}): the checkpoint contains nothing of a reference model, because its run did not use "
    what += f"train_impl: {config.post_training.train_impl}"
    hint = "set finetune: true to start a new run, with the loaded model as its reference model"
    yield Problem(what, config.place("load"), hint, id="reference-model-lost", about=("load", "train_impl", "finetune"))


def other_base_shapes(config: Config, checkpoint: Path | None) -> Iterator[Problem]:
    """Yield an error if muP's multipliers are not those of the checkpoint, because the base model has other shapes."""
    saved = checkpoint_folder.configuration(checkpoint)
    if checkpoint is None or saved is None or not config.mup.use_mup:
        return
    file = config.mup.base_shapes_file
    before = checkpoint_folder.recorded_digests(checkpoint).get(str(saved.get("base_shapes_file")))
    if before and checkpoint_folder.file_digest(file) not in ("", before):
        what = f"base_shapes_file ({file}) has other contents than in the run that wrote the checkpoint to be loaded "
        what += f"({checkpoint}), so muP would scale this model differently"
        hint, about = "restore the old base_shapes_file, or load a different checkpoint", ("base_shapes_file", "load")
        yield Problem(what, config.place("base_shapes_file"), hint, id="checkpoint-other-model", about=about)


def other_data(config: Config, checkpoint: Path | None) -> Iterator[Problem]:
    """Yield a warning about token files with other contents than when the checkpoint was written."""
    if checkpoint is None or config.checkpoint.finetune:
        return
    other = [now for before, now in _data_then_and_now(config, checkpoint) if _has_other_contents(before, now)]
    if other:
        # Of text, the token file is only a copy, which deepy writes again when the text changes.
        texts = path_list(config.data.text_path) if other == [config.get("data_path")] else []
        name, files = ("text_path", texts) if texts else ("data_path", other)
        what = f"the contents of {listed(files, 'and')} have changed since the checkpoint to be loaded ({checkpoint})"
        hint = "restore the old files to continue the same run; with other data, samples are repeated or left out"
        place, about = config.place("load"), (name, "load")
        yield Problem(what, place, hint, severity="warning", id="checkpoint-training-changed", about=about)


def _data_then_and_now(config: Config, checkpoint: Path) -> Iterator[tuple[Any, str]]:
    """Yield what a checkpoint records of each token file, and the prefix of this run's file in its place.

    A folder that was moved has other names: with as many files as then, they are compared one by one.
    """
    recorded = checkpoint_folder.recorded_digests(checkpoint)
    files = files_of(sources(config.data, config.post_training))
    # Earlier versions sorted the names, and recorded only a hash. That of base_shapes_file has a check of its own.
    of_data = {prefix: found for prefix, found in recorded.items() if isinstance(found, dict)}
    in_order = list(of_data.values()) if len(of_data) == len(files) else []
    for number, prefix in enumerate(files):
        if before := recorded.get(prefix) or (in_order[number] if in_order else None):
            yield before, prefix
    yield from ((found, prefix) for prefix, found in recorded.items() if isinstance(found, str) and prefix not in files)


def _has_other_contents(before: Any, prefix: str) -> bool:
    """Return whether a token file differs from what a checkpoint records, as far as is known without reading it."""
    if isinstance(before, str):
        return digest(prefix) not in ("", before)
    now = known_digests(prefix)
    then = {suffix: Digest.from_json(found) for suffix, found in before.items() if suffix in now}
    return any(found.difference(found if now[suffix].crc32 is None and found.size == now[suffix].size else now[suffix])
               for suffix, found in then.items())  # fmt: skip


def _changes(config: Config, checkpoint: Path | None) -> Mapping[Level, list[Difference]]:
    saved = checkpoint_folder.configuration(checkpoint)
    if saved is None:
        return defaultdict(list)
    # Imported here: most checks load no checkpoint, and this import would take a tenth of their time.
    from neoxargs.checks.checkpoint.changes import changes

    return changes(config, saved)


def _other_value(config: Config, change: Difference, checkpoint: Path | None) -> Problem:
    name, (theirs, ours) = change.name, map(form, change.values)
    what = differs(name, ours, theirs, checkpoint)
    hint = f"remove {name}" if change.values[0] is None else f"set {name} to {theirs}"
    hint += ", or load a different checkpoint"
    place = config.place(name) or config.place("load")
    return Problem(what, place, hint, id="checkpoint-other-model", about=(name, "load"))


def differs(name: str, ours: object, theirs: object, checkpoint: Path | None) -> str:
    """Say that a value is not the one in a checkpoint."""
    return f"{name} is {ours} in this configuration, but {theirs} in the checkpoint to be loaded ({checkpoint})"


def _listed(found: Sequence[Difference]) -> str:
    pairs = ((change.name, *map(form, change.values)) for change in found)
    return ", ".join(f"{name} (was {theirs}, now {ours})" for name, theirs, ours in pairs)


def form(value: Any) -> str:
    """Format a value as a YAML file would, `32.0` as the shorter `32`."""
    if value is None or isinstance(value, str):
        return value or "not set"
    short = int(value) if isinstance(value, float) and value.is_integer() else value
    return format_node(node_of(short), limit=200)


def skipped_checkpoints(config: Config, chosen: Path | None) -> Iterator[Problem]:
    """A warning for each newer checkpoint that is damaged, and for a `latest` that names none."""
    folder = config.checkpoint.load
    if not folder or chosen is None or config.training.iteration is not None:  # chosen by hand
        return
    if wrong := checkpoint_folder.wrong_latest(Path(folder)):
        yield _skipped(config, f"the file `latest` {wrong}", chosen)
    # Those that come before the chosen one, in the order in which they are tried.
    for candidate in takewhile(lambda candidate: candidate != chosen, checkpoint_folder.newest_first(Path(folder))):
        damage = checkpoint_folder.damage(candidate)
        yield _skipped(config, f"the checkpoint {candidate.name} is damaged: {damage}", chosen)


def _skipped(config: Config, why: str, chosen: Path) -> Problem:
    what = f"load ({config.checkpoint.load}): {why}; the run continues from {chosen.name}"
    hint = "set iteration to load a specific checkpoint"
    return Problem(what, config.place("load"), hint, severity="warning", id="checkpoint-skipped", about=("load",))


def loaded_checkpoint(config: Config) -> Path | None:
    """Return the checkpoint that the run loads, None if there is none. Looks at every file of a checkpoint."""
    return _in_folder(config.checkpoint.load, config.training.iteration)


def continued_checkpoint(config: Config) -> Path | None:
    """Return the checkpoint that the run continues from, with its iteration; None if it begins at the first one."""
    found = None if config.checkpoint.finetune else loaded_checkpoint(config)
    return found if found and checkpoint_folder.iteration_of(found) else None


def checkpoint_to_read(config: Config) -> Path | None:
    """Return the checkpoint that generate.py and eval.py load, None if there is none."""
    return _in_folder(config.checkpoint.load or config.checkpoint.save, config.training.iteration)


def _in_folder(folder: str | None, iteration: int | None) -> Path | None:
    if not folder:
        return None
    if iteration is None:
        return checkpoint_folder.newest(Path(folder))
    named = Path(folder, checkpoint_folder.tag(iteration))
    return named if named.is_dir() else None

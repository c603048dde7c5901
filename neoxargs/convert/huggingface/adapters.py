"""Exporting and importing adapters in peft's format, and models with their adapters merged."""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from neoxargs.base.problems import Problem, Problems
from neoxargs.config.config import Config
from neoxargs.convert import imported
from neoxargs.convert.folder import YAML, require_finite, values_set_by_user, write_digests
from neoxargs.convert.huggingface.family import Family
from neoxargs.convert.huggingface.forms import Sizes
from neoxargs.convert.huggingface.peft_format import (
    CONFIG,
    PREFIX,
    WEIGHTS,
    Pair,
    adapted_theirs,
    adapter_config,
    matrices,
    to_ours,
    to_theirs,
)
from neoxargs.convert.imported import Imported
from neoxargs.facts.lora import ALL, MODULES, NAMES, scale, target, targets
from neoxargs.files.checkpoints.folder import Base, named_by, verify
from neoxargs.resolve import resolve
from neoxargs.targets.nesting import nested
from neoxargs.train.checkpoint.base import require_undamaged
from neoxargs.train.checkpoint.weights_by_name import CheckpointWeights
from neoxargs.train.model.lora.adapters import MODULE, assembled, is_adapter

HEAD = """\
# Adapters from {source}, for the model in {model}
#
#   python deepy.py generate.py {file} --prompt "..."
#   python deepy.py train.py {file} --set save=FOLDER
"""
#: Parameters that are not copied from the configuration of the adapters' model.
NOT_TAKEN = ("load", "save", "iteration", "finetune", "base_checkpoint")
#: Keys of adapter_config.json that change what an adapter computes, with the values that deepy supports.
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "bias": ("none",), "use_dora": (False, None), "lora_bias": (False, None),
    "modules_to_save": (None, []), "layers_to_transform": (None, []), "layer_replication": (None, []),
    "trainable_token_indices": (None, []), "target_parameters": (None, []), "use_qalora": (False, None),
    "use_bdlora": (None,), "arrow_config": (None,), "kasa_config": (None,), "alora_invocation_tokens": (None, []),
    "monteclora_config": (None,), "velora_config": (None,), "rank_pattern": (None, {}), "alpha_pattern": (None, {}),
}  # fmt: skip


def write(
    config: Config, saved: CheckpointWeights, family: Family, sizes: Sizes, folder: Path, base: str | None
) -> None:
    """Write an adapter folder. base: the model's folder or its name on the Hub, if it is known."""
    from safetensors.torch import save_file

    def read(name: str) -> Tensor:
        return require_finite(saved.full_tensor(name), f"the weight {name}", f"load ({saved.folder})")

    tensors: dict[str, Tensor] = {}
    for matrix in matrices(config, family):
        ours = {part: Pair(*(read(matrix.weight(part, x)) for x in "AB")) for part in matrix.target.adapted}
        for name, pair in to_theirs(matrix, ours, sizes).items():
            # Copies, because safetensors refuses tensors that share memory: `to_theirs` returns views, and one A for
            # several modules.
            tensors |= {f"{PREFIX}{name}.lora_{x}.weight": getattr(pair, x).contiguous().clone() for x in "AB"}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    text = json.dumps(adapter_config(config, family, base), indent=2) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")
    write_digests(folder)


class PeftFolder:
    """A folder with adapters in peft's format."""

    def __init__(self, source: Path) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        self.source = source
        try:
            self.settings: dict[str, Any] = json.loads((source / CONFIG).read_text(encoding="utf-8"))
            self.tensors: dict[str, Tensor] = load_file(source / WEIGHTS)
        except (OSError, ValueError, RecursionError, SafetensorError) as error:
            what = f"{source} cannot be read as adapters in peft's format: {error}"
            raise Problems(Problem(what, id="adapters-unreadable")) from error
        self._require_supported()
        for name, tensor in self.tensors.items():
            require_finite(tensor, f"the weight {name}", str(source / WEIGHTS), hint="")

    @cached_property
    def modules(self) -> dict[str, Pair]:
        """Their module -> its adapter; raises Problems if half of one is missing."""
        names = {name.removeprefix(PREFIX).rpartition(".lora_")[0] for name in self.tensors}
        try:
            return {
                name: Pair(*(self.tensors[f"{PREFIX}{name}.lora_{x}.weight"].float() for x in "AB"))
                for name in sorted(names)
            }
        except KeyError as error:
            raise Problems(
                Problem(f"{self.source / WEIGHTS}: tensor {error.args[0]} is missing", id="adapters-unreadable")
            ) from error

    def _require_supported(self) -> None:
        problems = [
            Problem(
                f"{self.source / CONFIG}: {key} is {json.dumps(self.settings[key])}, which deepy does not support",
                hint=f"merge the adapters with peft's merge_and_unload, and import the merged model; or train them "
                f"with {key}: {json.dumps(values[0])}",
                id="adapters-not-expressible",
            )
            for key, values in SUPPORTED.items()
            if key in self.settings and self.settings[key] not in values
        ]
        if problems:
            raise Problems(problems)

    def targets(self, config: Config, family: Family) -> list[str]:
        """Return the value of `lora.targets`; raise Problems if the adapters are not those of some of our matrices."""
        found: dict[str, int] = {}
        known = set()
        for matrix in matrices(config, family, [target(config, module) for module in MODULES]):
            parts = [ALL] if len(matrix.theirs) == 1 else [part.name for part in matrix.target.parts]
            for theirs, part in zip(matrix.theirs, parts, strict=True):
                known.add(theirs)
                name = next(name for name, value in NAMES.items() if value == (matrix.target.module, part))
                found |= {name: found.get(name, 0) + 1} if theirs in self.modules else {}
        problems = [
            Problem(f"{self.source}: {family.architecture} has no module {name}", id="adapters-other-model")
            for name in sorted(set(self.modules) - known)[:3]
        ]
        problems += [
            Problem(
                f"{self.source}: only {count} of {config.shape.num_layers} layers have an adapter for {name}",
                hint="merge the adapters with peft's merge_and_unload, and import the merged model",
                id="adapters-not-expressible",
            )
            for name, count in found.items()
            if count < config.shape.num_layers
        ]
        if problems:
            raise Problems(problems)
        return sorted(found, key=list(NAMES).index)

    def weights(self, config: Config, family: Family, sizes: Sizes) -> dict[str, Tensor]:
        """Return our weights by name. config: with the section `lora`."""
        ours: dict[str, Tensor] = {}
        for matrix in matrices(config, family):
            theirs = {name: self.modules[name] for name in adapted_theirs(matrix)}
            for part, pair in to_ours(matrix, theirs, sizes).items():
                ours |= {matrix.weight(part, x): getattr(pair, x) for x in "AB"}
        return ours


def read(source: PeftFolder, given: Config, family: Family, sizes: Sizes, folder: Path, final: Path) -> None:
    """Write a YAML file and a checkpoint of adapters in peft's format. given: the configuration of their model.

    final: the folder's path after renaming. Raises Problems.
    """
    base, settings = _base(given), source.settings
    # The values after the keys are peft's defaults, in case the file leaves them out.
    values = {
        "lora.rank": settings.get("r", 8), "lora.alpha": settings.get("lora_alpha", 8),
        "lora.dropout": settings.get("lora_dropout", 0.0), "lora.targets": source.targets(given, family),
        "lora.rank_stabilized": bool(settings.get("use_rslora")),
        "base_checkpoint": str(base.folder), "load": str(final), "finetune": True,
    }  # fmt: skip
    head = HEAD.format(source=source.source, model=base.folder, file=final / YAML)
    text = yaml.safe_dump(nested({**values_set_by_user(given, NOT_TAKEN), **values}), sort_keys=False)
    (folder / YAML).write_text(f"{head}\n{text}", encoding="utf-8")
    config = resolve([folder / YAML], gpus=1)
    weights = source.weights(config, family, sizes)
    dtype = next(iter(source.tensors.values())).dtype
    counters = {"iteration": 0, "consumed_samples": 0}
    adapters = Imported(counters, dtype, list(weights), lambda name: weights[name].to(dtype), base=base)
    imported.write(adapters, config, folder, lambda size: None)


def _base(given: Config) -> Base:
    """Return the checkpoint of the adapters' model; raise Problems if the configuration names none."""
    root = given.checkpoint.base_checkpoint or given.checkpoint.load
    if root and (found := named_by(Path(root))):
        require_undamaged(found, verify)
        return Base.of(found)
    what = "the adapters need a model, but the files passed with --config name no checkpoint"
    hint = "pass the YAML file that deepy import wrote for the model, or one that sets load"
    raise Problems(Problem(what, hint=hint, id="base-checkpoint-missing", about=("load", "base_checkpoint")))


class Merged:
    """The weights of a model with its adapters merged, or with its soft prompt: a checkpoint for export."""

    def __init__(self, config: Config, base: CheckpointWeights, adapters: CheckpointWeights) -> None:
        self.base, self.adapters = base, adapters
        self.scale = scale(config) if config.lora.rank else 1.0
        self.folder = adapters.folder
        # A soft prompt, which is added to the model and merged into nothing.
        self.beside = {name for name in adapters.slices if not is_adapter(name)}
        self.slices, self.dtype = {*base.slices, *self.beside}, base.dtype
        self.complete = False
        self.common = adapters.common
        self.targets = {target.module: target for target in targets(config)}

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.adapters.groups

    @property
    def loss_scale(self) -> dict[str, Any]:
        return self.adapters.loss_scale

    def shape(self, name: str) -> list[int]:
        return (self.adapters if name in self.beside else self.base).shape(name)

    def states(self, name: str) -> dict[str, Any]:
        return {}

    def full_tensor(self, name: str, state: str = "", master: bool = False) -> Tensor:
        """Return a weight. master: in fp32, as precise as the checkpoints are."""
        if name in self.beside:
            return self.adapters.full_tensor(name, state, master)
        whole = self.base.full_tensor(name, state, master)
        match = re.fullmatch(r"(layers\.\d+\.(.+))\.weight", name)
        target = self.targets.get(match[2]) if match else None
        if match is None or target is None:
            return whole
        deltas = {}
        for part in target.adapted:
            A, B = (self.adapters.full_tensor(f"{match[1]}.{MODULE}.{part}.{x}", master=True).float() for x in "AB")
            # Transposed, because `assembled` takes outputs, with the rows in the last dimension.
            deltas[part] = (B @ A).t()
        merged = whole.float() + self.scale * assembled(target, deltas).t()
        return merged if master else merged.to(whole.dtype)

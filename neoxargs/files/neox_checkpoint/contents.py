"""The contents of a GPT-NeoX checkpoint: the tensors of every layer, the counters, the saved configuration."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Any

from neoxargs.base.problems import Problem, Problems
from neoxargs.files.neox_checkpoint.files import Files, find
from neoxargs.files.neox_checkpoint.pickles import TensorRef, read, unreadable
from neoxargs.resolve import Draft, draft, read_files

#: Number of a layer -> name of a tensor -> the tensors of all tensor parallel ranks.
Layers = dict[int, dict[str, list[TensorRef]]]
#: Endings of the names of tensors that are computed from the configuration.
BUFFERS = ("inv_freq", "alibi_embed.slopes", "_extra_state", "masked_bias", "rotary_emb.cos", "rotary_emb.sin")
#: Field of a learning rate curve -> its name in the saved schedule, and the parameter that sets it here.
SCHEDULE = {
    "style": ("decay_style", "lr_decay_style"), "lr": ("start_lr", "lr"), "min_lr": ("min_lr", "min_lr"),
    "warmup_iters": ("warmup_iter", "warmup"), "decay_iters": ("end_iter", "lr_decay_iters"),
}  # fmt: skip
#: Prefix of a tensor's name in a run without a pipeline: `sequential.` and the number of the layer.
SEQUENTIAL = re.compile(r"(?:module\.)?sequential\.(\d+)\.(.+)")


class Contents:
    """One checkpoint. Files are read when they are first needed; tensors are only located."""

    def __init__(self, files: Files) -> None:
        self.files, self.folder = files, files.folder
        self._states: dict[int, dict[str, Any]] = {}

    @classmethod
    def at(cls, root: Path, iteration: int | None) -> Contents | None:
        """Return the GPT-NeoX checkpoint that `load` and `iteration` select; None if there is none."""
        files = find(root, iteration)
        return cls(files) if files else None

    def state(self, number: int) -> dict[str, Any]:
        """Return the contents of one rank's state file."""
        if number not in self._states:
            found = read(self.files.states[number]) if number in self.files.states else {}
            if not isinstance(found, dict):
                raise unreadable(self.files.states[number], "it does not contain a rank's training state")
            self._states[number] = found
        return self._states[number]

    @property
    def common(self) -> dict[str, Any]:
        """The state of the first rank; all values in it that are not tensors are equal on all ranks."""
        return self.state(min(self.files.states, default=0))

    @property
    def iteration(self) -> int:
        found = self.common.get("iteration", self.common.get("total_iters"))
        for value in (found, self.files.iteration, self.common.get("global_steps")):
            if isinstance(value, int):
                return value
        what = f"load ({self.folder}): neither the files nor the folder name contain the checkpoint's iteration"
        hint = "rename the folder to global_stepN, with the iteration as N, or set finetune: true to load only the "
        hint += "weights"
        raise Problems(Problem(what, hint=hint, id="checkpoint-incomplete", about=("load", "finetune")))

    @property
    def deepspeed(self) -> tuple[int, ...] | None:
        """The version of DeepSpeed that wrote the checkpoint, if it is recorded."""
        found = re.match(r"(\d+)\.(\d+)", str(self.common.get("ds_version", "")))
        return (int(found[1]), int(found[2])) if found else None

    @property
    def arguments(self) -> dict[str, Any]:
        """The sizes of the model, which GPT-NeoX has stored since May 2021."""
        found = self.common.get("args")
        # A Namespace, which `pickles.py` reads as an Inert, or a dictionary.
        attributes = getattr(found, "attributes", found)
        return attributes if isinstance(attributes, dict) else {}

    @property
    def configurations(self) -> list[Path]:
        """The YAML files of the run that wrote the checkpoint."""
        found = sorted((self.folder / "configs").glob("*")) or sorted(self.folder.glob("*.yml"))
        return [path for path in found if path.suffix in (".yml", ".yaml", ".json")]

    @cached_property
    def draft(self) -> Draft:
        """The values in `configurations`; raises Problems if a file cannot be read."""
        return draft(read_files(self.configurations))

    @cached_property
    def layers(self) -> Layers:
        """Every weight by layer and name, in the order in which the model has them."""
        self._require_ranks()
        by_rank = [self._of_rank(rank) for rank in range(self.files.tensor_ranks)]
        found: Layers = {}
        for number, names in sorted(by_rank[0].items()):
            for name in names:
                if not name.endswith(BUFFERS):
                    found.setdefault(number, {})[name] = [self._tensor(rank, number, name) for rank in by_rank]
        if not found:
            what = f"load ({self.folder}): the files contain no model weights"
            raise Problems(Problem(what, id="checkpoint-other-weights", about=("load",)))
        return found

    def _require_ranks(self) -> None:
        """Raise Problems if all files of a tensor parallel rank are missing, or the weights are partitioned."""
        if self.files.zero3 and not self.files.by_layer:
            what = f"load ({self.folder}): ZeRO-3 stored only partitions of the weights, in the optimizer files"
            hint = "run the zero_to_fp32.py that DeepSpeed saved with the checkpoint, or save the checkpoint again "
            hint += "with zero_optimization.stage3_gather_16bit_weights_on_model_save: true"
            raise Problems(Problem(what, hint=hint, id="checkpoint-incomplete", about=("load",)))
        said = self.arguments.get("model_parallel_size") or self.common.get("mp_world_size")
        if isinstance(said, int) and said != self.files.tensor_ranks:
            what = (
                f"load ({self.folder}): the checkpoint was written with model_parallel_size {said}, but has "
                f"files for {self.files.tensor_ranks} tensor parallel rank{'s' * (self.files.tensor_ranks > 1)}"
            )
            hint = "copy the missing files from where the checkpoint was written"
            raise Problems(Problem(what, hint=hint, id="checkpoint-incomplete", about=("load",)))

    def _of_rank(self, rank: int) -> dict[int, dict[str, TensorRef]]:
        if self.files.by_layer:
            return {number: self._layer(files[rank]) for number, files in self.files.layers.items()}
        found: dict[int, dict[str, TensorRef]] = {}
        for name, tensor in (self.state(rank).get("module") or {}).items():
            if match := SEQUENTIAL.fullmatch(name):
                found.setdefault(int(match[1]), {})[match[2]] = tensor
        return found

    def _layer(self, file: Path) -> dict[str, TensorRef]:
        found = read(file)
        if not isinstance(found, dict):
            raise unreadable(file, "it contains no layer weights")
        return {name: tensor for name, tensor in found.items() if isinstance(tensor, TensorRef)}

    def _tensor(self, of_rank: dict[int, dict[str, TensorRef]], number: int, name: str) -> TensorRef:
        found = of_rank.get(number, {}).get(name)
        if not isinstance(found, TensorRef):
            what = f"load ({self.folder}): not every tensor parallel rank has a tensor {name} in layer {number}"
            raise Problems(Problem(what, id="checkpoint-incomplete", about=("load",)))
        return found

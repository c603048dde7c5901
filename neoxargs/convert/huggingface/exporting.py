"""`deepy export`: write a checkpoint of any layout as a folder that transformers loads, one tensor at a time."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.programs import Script
from neoxargs.base.request import Request
from neoxargs.config.config import Config
from neoxargs.convert.folder import exit_code, output_folder, require_finite, weight_name, write_digests
from neoxargs.convert.huggingface import FAMILIES, adapters, tokens
from neoxargs.convert.huggingface.family import Family, Piece
from neoxargs.convert.huggingface.forms import Sizes
from neoxargs.convert.huggingface.safetensors import Spec, Writer
from neoxargs.convert.neox import exporting as gpt_neox
from neoxargs.data.meter import Meter
from neoxargs.data.tokenizer import Tokenizer, build_tokenizer
from neoxargs.facts.attention import qkv_rows
from neoxargs.facts.layer_kinds import has_attention
from neoxargs.facts.model import has_experts, mlp_rows, weights_of_layers
from neoxargs.files import tokenizer_folder
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.launch.stages import State, run_until, unchanged
from neoxargs.train.checkpoint import base, inventory
from neoxargs.train.checkpoint.neox.loading import weights_of
from neoxargs.train.checkpoint.weights_by_name import COMPARE_CONFIG, CheckpointWeights, SavedWeights

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
#: Configurations are resolved and checked as for a launch of this.
EXPORT = Script("", "export")
#: Maximum size of a safetensors file, in bytes, if the user sets none.
MAX_SHARD_SIZE = 5 * UNITS["GB"]


class Export(NamedTuple):
    """A checkpoint to export, and how."""

    config: Config
    family: Family
    saved: CheckpointWeights
    tokenizer: Tokenizer
    sizes: Sizes
    dtype: torch.dtype

    def pieces(self) -> Iterator[Piece]:
        """Yield every weight in the model's order. Shared layers and a shared norm (`gpt_j_tied`) become copies."""
        order, shared_norm = weights_of_layers(self.config.shape), self.config.attention.gpt_j_tied
        sizes = len(order), not self.config.embedding.no_weight_tying, self.config.moe.moe_num_experts
        for ours, theirs, form, kinds in self.family.modules(*sizes):
            source = re.sub(r"layers\.(\d+)", lambda match: f"layers.{order[int(match[1])]}", ours)
            if shared_norm and self.config.attention.gpt_j_residual:
                source = source.replace("post_attention_layernorm", "input_layernorm")
            for kind in kinds:
                if kind == kinds[0] or weight_name(source, kind) in self.saved.slices:
                    names = tuple(self._name(module, kind) for module in theirs)
                    yield Piece(weight_name(source, kind), names, form)

    def specs(self, pieces: Sequence[Piece]) -> list[Spec]:
        """Return names and shapes of the tensors to write. No weight is read: the forms convert meta tensors."""
        specs = []
        for piece in pieces:
            parts = piece.form.to_theirs(torch.empty(self.saved.shape(piece.ours), device="meta"), self.sizes)
            specs += [Spec(name, tuple(part.shape), self.dtype) for name, part in zip(piece.theirs, parts, strict=True)]
        return specs

    def tensors(self, piece: Piece) -> Iterator[Tensor]:
        """Read a weight and yield it in the form of theirs, in the order of `piece.theirs`.

        Raises Problems if it is infinite or NaN, in the checkpoint or as `dtype`.
        """
        # For an export in fp32, the optimizer's fp32 weights are more precise than the model's own.
        master = self.dtype == torch.float32 and self.saved.complete
        where, name = f"load ({self.saved.folder})", f"the weight {piece.ours}"
        whole = require_finite(self.saved.full_tensor(piece.ours, master=master), name, where)
        dtype = next(name for name, each in DTYPES.items() if each == self.dtype)
        hint = "use --dtype bfloat16 or --dtype float32, which have larger numbers"
        for part in piece.form.to_theirs(whole, self.sizes):
            yield require_finite(part.to(self.dtype), f"as {dtype}, {name}", where, hint)

    def _name(self, module: str, kind: str) -> str:
        # The output layer is outside of the module that holds all others.
        return f"{'' if module in ('lm_head', 'embed_out') else self.family.prefix}{module}.{kind}"


def write(export: Export, folder: Path, limit: int = MAX_SHARD_SIZE) -> bool:
    """Write all files of the folder; return whether they include a tokenizer.

    limit: maximum size of a safetensors file, in bytes. Raises Problems if the checkpoint does not fit the model.
    """
    pieces = list(export.pieces())
    _require_same_model(export, pieces)
    specs = export.specs(pieces)
    title = f"writing {export.family.architecture}"
    with Meter(sum(spec.size for spec in specs), title) as meter, Writer(folder, specs, limit) as writer:
        for piece in pieces:
            for tensor in export.tensors(piece):
                writer.add(tensor)
                meter.advance(tensor.numel() * export.dtype.itemsize)
    (folder / "config.json").write_text(json.dumps(_config_json(export), indent=2) + "\n", encoding="utf-8")
    complete = tokens.write(export.config.tokenizer, export.tokenizer, export.config.shape.seq_length, folder)
    write_digests(folder, writer.digests)
    return complete


def _config_json(export: Export) -> dict[str, Any]:
    options, tokenizer = export.config.tokenizer, export.tokenizer
    given = tokenizer_folder.token_ids(tokenizer_folder.folder_of(options.tokenizer_type, options.vocab_file))
    ids = {"bos_token_id": tokenizer.start, "eos_token_id": tokenizer.eod} if given is None else given
    return {
        "architectures": [export.family.architecture], "model_type": export.family.model_type,
        **export.family.config_keys(export.config), "vocab_size": export.sizes.vocabulary,
        **ids, "torch_dtype": str(export.dtype).removeprefix("torch."), "use_cache": True,
    }  # fmt: skip


def _require_same_model(export: Export, pieces: Sequence[Piece]) -> None:
    """Raise Problems unless the checkpoint is of the model that the configuration describes."""
    used, saved = {piece.ours for piece in pieces}, set(export.saved.slices)
    subject = f"load ({export.saved.folder})"
    reasons = [f": the model has no weight {name}" for name in sorted(saved - used)[:3]]
    reasons = [f": weight {name} is missing from the checkpoint" for name in sorted(used - saved)[:3]] + reasons
    problems = [
        Problem(
            f"{subject}: the checkpoint does not fit this model{reason}",
            hint=COMPARE_CONFIG,
            id="checkpoint-other-weights",
            about=("load",),
        )
        for reason in reasons
    ]
    problems += [] if problems else _other_shapes(export, subject)
    if problems:
        raise Problems(problems)


def _other_shapes(export: Export, subject: str) -> Iterator[Problem]:
    for name, shape in _distinctive_shapes(export.config).items():
        if (found := export.saved.shape(name)) != shape:
            sizes = [" x ".join(map(str, each)) for each in (found, shape)]
            what = (
                f"{subject}: {name} has shape {sizes[0]} in the checkpoint, but this configuration expects {sizes[1]}"
            )
            yield Problem(what, hint=COMPARE_CONFIG, id="checkpoint-weight-shape", about=("load",))
    rows = export.sizes.vocabulary
    if (available := export.saved.shape("embedding.word_embeddings.weight")[0]) < rows:
        what = f"{subject}: the checkpoint's word embedding has {available} rows, but the exported model needs {rows}"
        hint = "use the tokenizer that the model was trained with, or a smaller --vocab-size"
        yield Problem(what, hint=hint, id="checkpoint-too-few-vocabulary-rows", about=("load",))


def _distinctive_shapes(config: Config) -> dict[str, list[int]]:
    """Return the shapes of the weights of the first layer that together depend on all of its widths."""
    first, hidden = f"layers.{weights_of_layers(config.shape)[0]}", config.shape.hidden_size
    if not has_attention(config, 0):
        return {f"{first}.mixer.in_proj.weight": [2 * config.mamba.mamba_inner_size, hidden]}
    shapes = {f"{first}.attention.query_key_value.weight": [qkv_rows(config), hidden]}
    if has_experts(config, 0):
        experts = config.moe.moe_num_experts
        return shapes | {f"{first}.mlp.experts.dense_h_to_4h.weight": [experts, mlp_rows(config), hidden]}
    return shapes | {f"{first}.mlp.dense_h_to_4h.weight": [mlp_rows(config), hidden]}


def choose_family(config: Config, architecture: str | None = None) -> Family:
    """Return the first family that can represent the model, or the one of `architecture`.

    Raises Problems with every parameter that prevents it; if no family is suitable, those of the closest family.
    """
    candidates = [FAMILIES[architecture]] if architecture else list(FAMILIES.values())
    obstacles = [(list(family.obstacles(config)), family) for family in candidates]
    # min takes the first of equals, so the order of FAMILIES decides where several are suitable.
    problems, family = min(obstacles, key=lambda pair: len(pair[0]))
    if problems:
        if not architecture:
            what = f"no supported architecture can represent this model; the closest is {family.architecture}"
            hint = "change the parameters named above; docs/huggingface.md lists what each architecture supports"
            problems.append(Problem(what, hint=hint, id="huggingface-no-architecture"))
        raise Problems(problems)
    return family


def checkpoint(config: Config) -> Path:
    """Return the checkpoint that `load` (or else `save`) and `iteration` select; raise Problems if it is not usable."""
    root, iteration = config.checkpoint.load or config.checkpoint.save, config.training.iteration
    if not root:
        what = "there is no checkpoint to export: neither load nor save is set"
        hint = "set load to a folder with a checkpoint"
        raise Problems(Problem(what, hint=hint, id="checkpoint-missing", about=("load", "save")))
    folder = (
        Path(root, checkpoint_folder.tag(iteration)) if iteration is not None else checkpoint_folder.newest(Path(root))
    )
    if folder is None:
        raise Problems(
            Problem(f"load ({root}): there is no checkpoint in this folder", id="checkpoint-missing", about=("load",))
        )
    if damage := checkpoint_folder.verify(folder):
        what = f"load ({folder}) cannot be exported: {damage}"
        raise Problems(Problem(what, id="checkpoint-not-usable", about=("load", "iteration")))
    return folder


def prepare(
    config: Config, saved: CheckpointWeights, family: Family, dtype: torch.dtype | None = None, rows: int | None = None
) -> Export:
    """Return what `write` needs.

    dtype: None writes the checkpoint's. rows: of the embedding; None writes one per token of the tokenizer.
    Raises Problems if some of the tokens would have no row.
    """
    tokenizer = build_tokenizer(config.tokenizer)
    if rows and rows < tokenizer.vocab_size:
        what = f"--vocab-size ({rows}) is smaller than the tokenizer's vocabulary ({tokenizer.vocab_size} tokens)"
        hint = "remove --vocab-size to write one row per token"
        raise Problems(Problem(what, hint=hint, id="export-vocabulary-too-small"))
    sizes = sizes_of(config, rows or tokenizer.vocab_size)
    return Export(config, family, saved, tokenizer, sizes, dtype or saved.dtype)


def sizes_of(config: Config, rows: int) -> Sizes:
    """Return the sizes that the forms of weights need. rows: of the embedding."""
    shape = config.shape
    queries = shape.num_attention_heads // shape.num_kv_heads
    return Sizes(queries, shape.num_kv_heads, rows, config.embedding.opt_pos_emb_offset)


def merged_weights(config: Config) -> CheckpointWeights:
    """Return the weights of the checkpoint, into which adapters are merged; raise Problems."""
    saved = weights(config)
    if checkpoint_folder.recorded_base(saved.folder) is None:
        return saved
    model = base.of_run(config, saved.folder, checkpoint_folder.verify)
    if model is None:
        frozen = "the adapters were trained on a randomly initialised model, which no checkpoint contains"
        what = f"load ({saved.folder}): {frozen}"
        raise Problems(Problem(what, id="base-checkpoint-missing", about=("load", "base_checkpoint")))
    return adapters.Merged(config, model.weights, saved)


def weights(config: Config) -> CheckpointWeights:
    """Return the weights of the checkpoint, deepy's or GPT-NeoX's; raise Problems."""
    if (root := config.checkpoint.load or config.checkpoint.save) and (
        theirs := weights_of(config, Path(root), config.training.iteration)
    ):
        return theirs
    folder = checkpoint(config)
    inventories = inventory.read(folder)
    if not inventories:
        what = f"load ({folder}): the checkpoint's weight index ({inventory.PREFIX}*.json) is missing"
        hint = "to write a checkpoint with a weight index, continue the run with train.py for one step"
        raise Problems(Problem(what, hint=hint, id="checkpoint-without-inventory", about=("load",)))
    return SavedWeights(folder, inventories)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deepy export", allow_abbrev=False,
        description="Convert a checkpoint to a Hugging Face folder (config.json, safetensors files, tokenizer) or to "
        "a GPT-NeoX checkpoint.",
    )  # fmt: skip
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", help="merge these YAML files; .yml may be omitted")
    add("--to", required=True, metavar="FOLDER", type=Path, help="write to FOLDER, which must not exist yet")
    add("-d", "--conf_dir", "--conf-dir", metavar="DIR", help="look for FILEs in DIR first")
    add("--set", metavar="KEY=VALUE", action="append", default=[], help="override a value, such as iteration=1000")
    add("--gpus", metavar="N", type=_count,
        help="assume N GPUs instead of those on this machine")  # fmt: skip
    add("--format", choices=("huggingface", "neox"), default="huggingface",
        help="write a Hugging Face folder, or a GPT-NeoX checkpoint (default: %(default)s)")  # fmt: skip
    add("--architecture", choices=list(FAMILIES), metavar="NAME", help=f"export as one of {', '.join(FAMILIES)}")
    add("--dtype", choices=list(DTYPES), metavar="NAME",
        help=f"write weights as one of {', '.join(DTYPES)} (default: the checkpoint's type)")  # fmt: skip
    add("--max-shard-size", type=_bytes, default=MAX_SHARD_SIZE, metavar="SIZE",
        help=f"limit each safetensors file to SIZE (default: {MAX_SHARD_SIZE // UNITS['GB']}GB)")  # fmt: skip
    add("--adapter", action="store_true",
        help="write only the LoRA adapters, in peft's format, instead of merging them into the model")  # fmt: skip
    add("--base-model", metavar="NAME",
        help="record NAME (a folder, or a name on the Hub) as the base model of the adapters")  # fmt: skip
    add("--vocab-size", type=_count, metavar="N",
        help="write N rows of the word embedding (default: one per token of the tokenizer)")  # fmt: skip
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([KMG]B)?", text.upper())
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 5GB or 500MB")
    return int(match[1]) * UNITS[match[2] or ""]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `deepy export` and return its exit code."""
    return exit_code(_export, parser().parse_args(argv))


def _export(options: argparse.Namespace) -> None:
    if useless := list(_useless_options(options)):
        raise Problems(useless)
    wanted = State(EXPORT, Request.of(options), os.environ, subjects=["files"])
    config = run_until("refuse", wanted, {"command": unchanged}).spec.config
    if options.adapter:
        return _export_adapters(config, options)
    if options.format == "neox":
        saved = merged_weights(config)
        with output_folder(options.to) as folder:
            state = "" if gpt_neox.write(config, saved, folder) else ", without optimizer state"
        print(f"exported {saved.folder} to {options.to} in GPT-NeoX's format{state}")
        return
    family = choose_family(config, options.architecture)
    export = prepare(config, merged_weights(config), family, DTYPES.get(options.dtype), options.vocab_size)
    with output_folder(options.to) as folder:
        has_tokenizer = write(export, folder, options.max_shard_size)
    print(f"exported {export.saved.folder} to {options.to} as {export.family.architecture}")
    if not has_tokenizer:
        print(f"no tokenizer was written, because transformers has no equivalent of {config.tokenizer.tokenizer_type}")


def _useless_options(options: argparse.Namespace) -> Iterator[Problem]:
    """Yield a problem for each option without effect."""
    to_model = ("--dtype", "--max-shard-size", "--vocab-size")
    cases: list[tuple[bool, str, str, tuple[str, ...]]] = [
        (options.adapter, "with --adapter", "remove --adapter to export the whole model", ("--format", *to_model)),
        (not options.adapter, "without --adapter", "add --adapter to export only the adapters", ("--base-model",)),
        (
            options.format == "neox" and not options.adapter, "with --format neox",
            "remove --format to write a Hugging Face folder", ("--architecture", *to_model),
        ),
    ]  # fmt: skip
    defaults = parser()
    for _, when, remedy, names in filter(lambda case: case[0], cases):
        for name in names:
            key = name.strip("-").replace("-", "_")
            if getattr(options, key) != defaults.get_default(key):
                what, hint = f"{name} has no effect {when}", f"remove {name}, or {remedy}"
                yield Problem(what, hint=hint, id="export-option-not-applicable")


def _export_adapters(config: Config, options: argparse.Namespace) -> None:
    if not config.lora.rank:
        hint = "pass the YAML file of a LoRA run, or remove --adapter"
        raise Problems(Problem("--adapter needs adapters, but lora.rank is 0", hint=hint, id="adapters-missing"))
    family, saved = choose_family(config, options.architecture), weights(config)
    with output_folder(options.to) as folder:
        adapters.write(config, saved, family, sizes_of(config, 0), folder, options.base_model)
    print(f"exported the adapters in {saved.folder} to {options.to} for {family.architecture}")


if __name__ == "__main__":
    sys.exit(main())

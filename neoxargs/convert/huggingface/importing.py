"""`deepy import`: convert a Hugging Face folder to a YAML file and a checkpoint that a run of any layout can load.

The checkpoint has no optimizer state. GPT-NeoX's checkpoints are imported by convert/neox/importing.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import yaml
from torch import Tensor

from neoxargs.base.problems import Problem, Problems, listed, similar_folders
from neoxargs.convert import imported
from neoxargs.convert.folder import YAML, exit_code, output_folder, require_finite, require_undamaged, weight_name
from neoxargs.convert.huggingface import adapters, exporting, peft_format, tokens
from neoxargs.convert.huggingface.configuration import ImportedModel, read
from neoxargs.convert.huggingface.family import Piece
from neoxargs.convert.huggingface.forms import Sizes
from neoxargs.convert.huggingface.safetensors import Reader
from neoxargs.convert.imported import Imported
from neoxargs.convert.neox import importing as gpt_neox
from neoxargs.data.encode import Recipe
from neoxargs.data.meter import Meter
from neoxargs.data.tokenizer import BUILDERS, FastTokenizer, PieceTokenizer, build_tokenizer
from neoxargs.facts.vocab import padded_vocab_size
from neoxargs.files import tokenizer_folder
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.registry import REGISTRY
from neoxargs.resolve import resolve
from neoxargs.targets.nesting import nested
from neoxargs.train.checkpoint.neox import loading

PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bfloat16"}
HEAD = """\
# {architecture} from {source}
#
#   python deepy.py generate.py {file} --prompt "..."
#   python deepy.py train.py {file} --set text_path=FILE --set save=FOLDER
"""
#: Example settings for further training.
TRAINING = {
    "train_micro_batch_size_per_gpu": 1,
    "train_iters": 1000,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-5}},
    "gradient_clipping": 1.0,
    "checkpoint_factor": 500,
}


class Import:
    """A Hugging Face folder to import. Weights are read one at a time.

    names: name of a weight without prefix and aliases -> its name in the files.
    Raises Problems if config.json has no equivalent, or weights are missing or unknown.
    """

    def __init__(self, source: Path) -> None:
        self.model: ImportedModel = read(source)
        self.reader = Reader(source)
        self.names = {self._name_in_family(name): name for name in self.reader.where}
        values = self.model.values
        heads = values["num_attention_heads"]
        groups = values.get("num_kv_heads", heads)
        self.sizes = Sizes(heads // groups, groups, self.model.vocabulary)
        self.pieces = list(self._pieces())
        self._require_all()
        #: Type of the first weight; the others usually have the same.
        self.dtype = self.reader.dtype(self.names[self.pieces[0].theirs[0]])

    def tensor(self, piece: Piece) -> Tensor:
        """Return a weight in our form; raise Problems if the shapes of their tensors do not match config.json."""
        parts = [self._part(self.names[name]) for name in piece.theirs]
        try:
            return piece.form.to_ours(parts, self.sizes).contiguous()
        except RuntimeError as error:  # torch raises it for shapes that do not match
            shapes = "shape" if len(piece.theirs) == 1 else "shapes"
            what = f"{self.reader.folder}: config.json does not match the {shapes} of {listed(piece.theirs, 'and')}"
            raise Problems(Problem(what, id="huggingface-weight-shape")) from error

    def _part(self, name: str) -> Tensor:
        return require_finite(self.reader.read(name), f"the weight {name}", str(self.reader.where[name]), hint="")

    def _pieces(self) -> Iterator[Piece]:
        values = self.model.values
        sizes = values["num_layers"], not values["no_weight_tying"], values.get("moe_num_experts", 1)
        for ours, theirs, form, kinds in self.model.family.modules(*sizes):
            for kind in kinds:
                names = tuple(f"{module}.{kind}" for module in theirs)
                if kind == kinds[0] or names[0] in self.names:
                    yield Piece(weight_name(ours, kind), names, form)

    def _name_in_family(self, name: str) -> str:
        family = self.model.family
        module, dot, kind = name.removeprefix(family.prefix).rpartition(".")
        return family.aliases.get(module, module) + dot + kind

    def _require_all(self) -> None:
        family, used = self.model.family, {name for piece in self.pieces for name in piece.theirs}
        missing = sorted(used - set(self.names))
        surplus = sorted(
            name for normal, name in self.names.items()
            if normal not in used and not normal.endswith(family.ignored) and normal.rpartition(".")[0] not in OUTPUTS
        )  # fmt: skip
        where = self.reader.folder
        problems = [
            Problem(f"{where}: {family.architecture}'s weight {name} is missing", id="huggingface-weight-missing")
            for name in missing[:3]
        ]
        problems += [
            Problem(
                f"{where} contains weight {name}, which {family.architecture} does not have",
                id="huggingface-weight-unknown",
            )
            for name in surplus[:3]
        ]
        if problems:
            raise Problems(problems)


#: The output layer's module. Some programs write its weight even if it is tied to the embedding; it is then ignored.
OUTPUTS = ("lm_head", "embed_out")


def write(source: Import, tokenizer: dict[str, str], folder: Path, final: Path) -> None:
    """Write the YAML file, the checkpoint and the tokenizer's files. final: the folder's path after renaming."""
    rows = _rows(source.model.vocabulary, tokenizer)
    text = _yaml(source, final, rows, tokens.copy_files(tokenizer, source.reader.folder, folder, final))
    (folder / YAML).write_text(text, encoding="utf-8")
    config = resolve([folder / YAML], gpus=1)
    pieces = {piece.ours: piece for piece in source.pieces}
    counters = {"iteration": 0, "consumed_samples": 0}
    weights = Imported(counters, source.dtype, list(pieces), lambda name: source.tensor(pieces[name]))
    total = sum(file.stat().st_size for file in set(source.reader.where.values()))
    with Meter(total, f"reading {source.model.family.architecture}") as meter:
        imported.write(weights, config, folder, meter.advance)


def _yaml(source: Import, final: Path, rows: dict[str, int], tokenizer: dict[str, str]) -> str:
    # The longest context that the model was made for; generation and training may use it.
    values = {**source.model.values, "seq_length": source.model.values["max_position_embeddings"], **rows}
    blocks = {
        "The GPT-NeoX version whose defaults apply.": {"dialect": "neox-2026"},
        "The model.": values,
        "The tokenizer.": tokenizer,
        "The weights, from a checkpoint without optimizer state.": {"load": str(final), "finetune": True},
        "Example settings for further training; adjust them as needed.": TRAINING
        | {"precision": PRECISIONS[source.dtype]},
    }
    head = HEAD.format(architecture=source.model.family.architecture, source=source.reader.folder, file=final / YAML)
    parts = [f"\n# {title}\n{yaml.safe_dump(nested(block), sort_keys=False)}" for title, block in blocks.items()]
    return head + "".join(parts)


def _rows(vocabulary: int, tokenizer: dict[str, str]) -> dict[str, int]:
    """Return `padded_vocab_size` if the model has more embedding rows than the tokenizer's padded vocabulary.

    Raises Problems if the tokenizer has more tokens than the model has rows.
    """
    recipe = Recipe(tokenizer["tokenizer_type"], tokenizer.get("vocab_file"), tokenizer.get("merge_file"))
    built = build_tokenizer(recipe)
    folder = tokenizer_folder.folder_of(recipe.tokenizer_type, recipe.vocab_file)
    if folder and isinstance(built, FastTokenizer | PieceTokenizer) and recipe.tokenizer_type != "HFTokenizer":
        _require_added_tokens(built, folder)
    size = built.vocab_size
    if size > vocabulary:
        what = f"the tokenizer has {size} tokens, more than vocab_size ({vocabulary})"
        hint = "pass --tokenizer-type NAME [--vocab-file FILE] to use a different tokenizer"
        raise Problems(Problem(what, hint=hint, id="huggingface-tokenizer-too-large"))
    # The YAML file sets neither the unit nor tensor parallelism, so a run pads in this way.
    unit = REGISTRY.parameters["make_vocab_size_divisible_by"].default
    needed = padded_vocab_size(vocabulary, unit, 1)
    return {"padded_vocab_size": needed} if needed > padded_vocab_size(size, unit, 1) else {}


def _require_added_tokens(tokenizer: FastTokenizer | PieceTokenizer, folder: Path) -> None:
    """Raise Problems if a folder adds tokens to its vocabulary, which would be read as ordinary text."""
    lost = [token for token in tokenizer_folder.added_tokens(folder) if tokenizer.id_of(token) is None]
    if lost:
        what = f"{folder} adds the tokens {listed(lost, 'and')}, which deepy reads only from a tokenizer.json"
        hint = f"to write one, {tokenizer_folder.MAKE_JSON}"
        raise Problems(Problem(what, hint=hint, id="huggingface-tokens-lost"))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deepy import", allow_abbrev=False,
        description=f"Convert a Hugging Face folder or a GPT-NeoX checkpoint to {YAML} and a checkpoint that a run "
        "of any layout can load.",
    )  # fmt: skip
    add = parser.add_argument
    add("source", metavar="FOLDER", type=Path,
        help="read a Hugging Face model with its tokenizer, adapters in peft's format, or a GPT-NeoX checkpoint from "
        "FOLDER")  # fmt: skip
    add("--to", metavar="FOLDER", type=Path, help="write to FOLDER, which must not exist yet")
    add(
        "--dry-run",
        action="store_true",
        help="list what a GPT-NeoX checkpoint contains, and write nothing",
    )
    add("--iteration", type=int, metavar="N", help="read the GPT-NeoX checkpoint at this iteration (default: newest)")
    add("--config", metavar="FILE", type=Path, action="append", default=[],
        help="read the configuration from FILE: that of the run, if a GPT-NeoX checkpoint does not contain it, or that "
        "of the model to which adapters belong; may be repeated")  # fmt: skip
    add(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a value of the configuration",
    )
    add("--format", choices=("deepy", "huggingface"), default="deepy",
        help="convert a GPT-NeoX checkpoint to this format (default: %(default)s)")  # fmt: skip
    add("--tokenizer-type", choices=list(BUILDERS), metavar="NAME", help=f"use one of {', '.join(BUILDERS)}")
    add("--vocab-file", metavar="FILE",
        help="read the tokenizer's vocabulary from FILE, if the folder has no tokenizer")  # fmt: skip
    add("--merge-file", metavar="FILE", help="read GPT2BPETokenizer's merges from FILE (merges.txt)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `deepy import` and return its exit code."""
    words = parser()
    options = words.parse_args(argv)
    if options.to is None and not options.dry_run:
        words.error("--to FOLDER is required")
    return exit_code(_import, options)


def _import(options: argparse.Namespace) -> None:
    if not options.source.is_dir():
        what, hint = f"{options.source}: there is no such folder", similar_folders(str(options.source))
        raise Problems(Problem(what, hint=hint, id="nothing-to-import"))
    if contents := Contents.at(options.source, options.iteration):
        return _import_neox(options, contents)
    if options.dry_run:
        hint = "remove --dry-run, which works only for GPT-NeoX checkpoints"
        raise Problems(Problem(f"{options.source} is not a GPT-NeoX checkpoint", hint=hint, id="checkpoint-missing"))
    require_undamaged(options.source)
    if (options.source / peft_format.CONFIG).exists():
        return _import_adapters(options)
    if not (options.source / "config.json").exists():
        what = f"{options.source} contains neither a Hugging Face model (config.json) nor a GPT-NeoX checkpoint"
        hint = "pass the folder that contains config.json, or the folder of a GPT-NeoX checkpoint"
        raise Problems(Problem(what, hint=hint, id="nothing-to-import"))
    given = {name: getattr(options, name) for name in ("tokenizer_type", "vocab_file", "merge_file")}
    named = {name: value for name, value in given.items() if value}
    source, final = Import(options.source), Path(os.path.realpath(options.to))
    with output_folder(final) as folder:
        write(source, named or tokens.tokenizer_parameters(options.source), folder, final)
    print(f"imported {options.source} ({source.model.family.architecture}) to {options.to / YAML}")


def _import_adapters(options: argparse.Namespace) -> None:
    if not options.config:
        what = f"{options.source} contains adapters, which need the configuration of their model"
        hint = f"pass the model's YAML file with --config FILE, such as the {YAML} that deepy import wrote for it"
        raise Problems(Problem(what, hint=hint, id="adapters-without-model"))
    given = resolve(options.config, options.set, gpus=1)
    family, source = exporting.choose_family(given), adapters.PeftFolder(options.source)
    final = Path(os.path.realpath(options.to))
    with output_folder(final) as folder:
        adapters.read(source, given, family, exporting.sizes_of(given, 0), folder, final)
    print(f"imported the adapters in {options.source} ({family.architecture}) to {options.to / YAML}")


def _import_neox(options: argparse.Namespace, contents: Contents) -> None:
    chosen = [f"iteration={options.iteration}"] if options.iteration is not None else []
    root = options.source.resolve()
    config = gpt_neox.configuration(contents, root, options.config, [*options.set, *chosen])
    weights = loading.checked(contents, config)
    if options.dry_run:
        print("\n".join(gpt_neox.listing(config, weights)))
        return
    final = Path(os.path.realpath(options.to))
    with output_folder(final) as folder:
        if options.format == "huggingface":
            export = exporting.prepare(config, weights, exporting.choose_family(config))
            exporting.write(export, folder)
            kind = f"as {export.family.architecture}"
        else:
            gpt_neox.write(config, weights, options.config, folder, final)
            kind = f"to {options.to / YAML}"
    state = "" if weights.complete else f"; without optimizer state: {weights.why_incomplete}"
    print(f"imported {contents.folder} (GPT-NeoX, iteration {contents.iteration}) {kind}{state}")


if __name__ == "__main__":
    sys.exit(main())

"""`deepy import`: a Hugging Face folder as a YAML and a checkpoint, which runs of any layout load.

The checkpoint is one that no layout wrote: a file for each layer with whole weights, and no optimizer.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from neoxargs.launch.targets.ranks import train_values
from neoxargs.problems import Problem, Problems, listed
from neoxargs.registry import REGISTRY
from neoxargs.resolve import resolve
from neoxargs.sizes.vocab import padded_vocab_size
from neoxargs.train.checkpoint import inventory
from neoxargs.train.checkpoint.commit import begin, commit
from neoxargs.train.data.encode import Recipe
from neoxargs.train.data.meter import Meter
from neoxargs.train.data.tokenizer import BUILDERS, build_tokenizer
from neoxargs.train.huggingface import tokens
from neoxargs.train.huggingface.configuration import Read, read
from neoxargs.train.huggingface.family import Piece
from neoxargs.train.huggingface.folder import finished, key, written
from neoxargs.train.huggingface.forms import Sizes
from neoxargs.train.huggingface.safetensors import Reader

YAML, STATES = "model.yml", "mp_rank_00_model_states.pt"
PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bfloat16"}
HEAD = """\
# {architecture} from {source}
#
#   python deepy.py generate.py {file} --prompt "..."
#   python deepy.py train.py {file} --set text_path=FILE
"""
#: A beginning for whoever trains on.
TRAINING = {
    "train_micro_batch_size_per_gpu": 1,
    "train_iters": 1000,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-5}},
    "gradient_clipping": 1.0,
    "checkpoint_factor": 500,
}


class Import:
    """A folder of theirs, read lazily."""

    def __init__(self, source: Path) -> None:
        self.read: Read = read(source)
        self.reader = Reader(source)
        self.names = {self._normal(name): name for name in self.reader.where}
        values = self.read.values
        heads = values["num_attention_heads"]
        groups = values.get("num_kv_heads", heads)
        self.sizes = Sizes(heads // groups, groups, self.read.vocabulary)
        self.pieces = list(self._pieces())
        self._require_all()
        #: Of the first matrix, and as a rule of all.
        self.dtype = self.reader.dtype(self.names[self.pieces[0].theirs[0]])

    def tensor(self, piece: Piece) -> Tensor:
        parts = [self.reader.read(self.names[name]) for name in piece.theirs]
        try:
            return piece.form.together(parts, self.sizes).contiguous()
        except RuntimeError as error:  # torch's word for shapes that do not go together
            what = (
                f"{self.reader.folder}: {listed(piece.theirs, 'and')} do not have the shapes expected from config.json"
            )
            raise Problems(Problem(what, id="huggingface-weight-shape")) from error

    def _pieces(self) -> Iterator[Piece]:
        values = self.read.values
        for ours, theirs, form in self.read.family.modules(values["num_layers"], not values["no_weight_tying"]):
            for kind in ("weight", "bias"):
                names = tuple(f"{module}.{kind}" for module in theirs)
                if kind == "weight" or names[0] in self.names:
                    yield Piece(key(ours, kind), names, form)

    def _normal(self, name: str) -> str:
        family = self.read.family
        module, dot, kind = name.removeprefix(family.prefix).rpartition(".")
        return family.aliases.get(module, module) + dot + kind

    def _require_all(self) -> None:
        family, used = self.read.family, {name for piece in self.pieces for name in piece.theirs}
        missing = sorted(used - set(self.names))
        surplus = sorted(
            name for normal, name in self.names.items()
            if normal not in used and not normal.endswith(family.ignored) and normal.rpartition(".")[0] not in OUTPUTS
        )  # fmt: skip
        where = self.reader.folder
        problems = [
            Problem(f"{where} has no weight {name}, which {family.architecture} has", id="huggingface-weight-missing")
            for name in missing[:3]
        ]
        problems += [
            Problem(
                f"{where} has a weight {name}, which {family.architecture} does not have",
                id="huggingface-weight-unknown",
            )
            for name in surplus[:3]
        ]
        if problems:
            raise Problems(problems)


#: Written by some although it is the embedding's.
OUTPUTS = ("lm_head", "embed_out")


def write(source: Import, tokenizer: dict[str, str], folder: Path, final: Path) -> None:
    """The YAML, the checkpoint and the tokenizer's files. final: where the folder will be."""
    rows = _rows(source.read.vocabulary, tokenizer)
    text = _yaml(source, final, rows, tokens.copied(tokenizer, folder, final))
    (folder / YAML).write_text(text, encoding="utf-8")
    config = resolve([folder / YAML], gpus=1)
    part = begin(folder, 0)
    _write_weights(source, part)
    (part / "config.json").write_text(json.dumps(train_values(config), indent=1), encoding="utf-8")
    commit(folder, 0)


def _write_weights(source: Import, part: Path) -> None:
    """Layer by layer, so that one at a time is in memory."""
    where: dict[str, Any] = {}
    total = sum(file.stat().st_size for file in set(source.reader.where.values()))
    with Meter(total, f"reading {source.read.family.architecture}") as meter:
        for file, pieces in groupby(source.pieces, _file):
            weights = {piece.ours: source.tensor(piece) for piece in pieces}
            torch.save(weights, part / file)
            where |= {name: [file, name, list(weight.shape), None] for name, weight in weights.items()}
            meter.advance(sum(weight.numel() * weight.element_size() for weight in weights.values()))
    torch.save({"iteration": 0, "consumed_samples": 0}, part / STATES)
    described = {"kind": "imported", "dtype": str(source.dtype), "states": STATES, "optimizer": STATES}
    whole = {**described, "weights": where, "pieces": [], "complete": False}
    (part / f"{inventory.PREFIX}mp_rank_00.json").write_text(json.dumps(whole), encoding="utf-8")


def _file(piece: Piece) -> str:
    """Weights of one layer lie together."""
    layer = re.match(r"layers\.\d+|[a-z_]+", piece.ours)
    assert layer
    return f"weights-{layer[0]}.pt"


def _yaml(source: Import, final: Path, rows: dict[str, int], tokenizer: dict[str, str]) -> str:
    values = {**source.read.values, "seq_length": source.read.values["max_position_embeddings"], **rows}
    blocks = {
        "The GPT-NeoX version whose names and defaults apply.": {"dialect": "neox-2026"},
        "The model.": values,
        "The tokenizer.": tokenizer,
        "The weights. The checkpoint has no optimizer state.": {"load": str(final), "finetune": True},
        "Example settings for further training; adjust them.": TRAINING | {"precision": PRECISIONS[source.dtype]},
    }
    head = HEAD.format(architecture=source.read.family.architecture, source=source.reader.folder, file=final / YAML)
    parts = [f"\n# {title}\n{yaml.safe_dump(block, sort_keys=False)}" for title, block in blocks.items()]
    return head + "".join(parts)


def _rows(vocabulary: int, tokenizer: dict[str, str]) -> dict[str, int]:
    """More rows than the tokenizer has tokens are kept, where they are more than the usual padding."""
    recipe = Recipe(tokenizer["tokenizer_type"], tokenizer.get("vocab_file"), tokenizer.get("merge_file"))
    size = build_tokenizer(recipe).vocab_size
    if size > vocabulary:
        what = f"the tokenizer has {size} tokens, more than vocab_size ({vocabulary})"
        hint = "pass --tokenizer-type NAME [--vocab-file FILE] to use another tokenizer"
        raise Problems(Problem(what, hint=hint, id="huggingface-tokenizer-too-large"))
    unit = REGISTRY.parameters["make_vocab_size_divisible_by"].default
    needed = padded_vocab_size(vocabulary, unit, 1)
    return {"padded_vocab_size": needed} if needed > padded_vocab_size(size, unit, 1) else {}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deepy import", allow_abbrev=False,
        description=f"Write a Hugging Face folder as {YAML} and a checkpoint that runs of any layout load.",
    )  # fmt: skip
    add = parser.add_argument
    add("source", metavar="FOLDER", type=Path, help="read config.json, safetensors files and the tokenizer from FOLDER")
    add("--to", required=True, metavar="FOLDER", type=Path, help="write to FOLDER, which must not exist yet")
    add("--tokenizer-type", choices=list(BUILDERS), metavar="NAME", help=f"use one of {', '.join(BUILDERS)}")
    add("--vocab-file", metavar="FILE", help="read the tokenizer's vocabulary, if the folder has no tokenizer")
    add("--merge-file", metavar="FILE", help="read merges.txt, for GPT2BPETokenizer")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 after printing what is wrong."""
    return finished(_import, parser().parse_args(argv))


def _import(options: argparse.Namespace) -> None:
    given = {name: getattr(options, name) for name in ("tokenizer_type", "vocab_file", "merge_file")}
    named = {name: value for name, value in given.items() if value}
    source, final = Import(options.source), options.to.resolve()
    with written(final) as folder:
        write(source, named or tokens.tokenizer_parameters(options.source), folder, final)
    print(f"{options.to / YAML}: {source.read.family.architecture} from {options.source}")


if __name__ == "__main__":
    sys.exit(main())

"""Sources of the fuzz run: published and shipped configurations, documents with DeepSpeed configurations, a script.

Mutations with a known place use only sources without problems of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from neoxargs.base.files import Text
from neoxargs.base.problems import Problems
from neoxargs.registry import REGISTRY, Parameter, normal
from neoxargs.resolve import draft
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Scalar
from neoxargs.resolve.yaml.read import File
from tests.support.paths import CONFIGS, CORPUS, REFERENCE

SCRIPT = """\
#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-2}
CHECKPOINT="checkpoints/345m"

GPT_ARGS="
    --num-layers 24 \\
    --hidden-size 1024 \\
    --num-attention-heads 16 \\
    --seq-length 1024 \\
    --max-position-embeddings 1024 \\
    --micro-batch-size 4 \\
    --global-batch-size $((4 * GPUS_PER_NODE)) \\
    --lr 0.00015 --min-lr 1.0e-5 \\
    --train-iters 500000 --lr-decay-iters 320000 --lr-decay-style cosine \\
    --weight-decay 1e-2 --lr-warmup-fraction .01 --clip-grad 1.0 \\
    --fp16
"
DATA=(--data-path my_text_document --split 949,50,1 --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt)

torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py \\
    $GPT_ARGS "${DATA[@]}" \\
    --tensor-model-parallel-size 2 --save $CHECKPOINT --load "$CHECKPOINT" # all of it
"""
DEEPSPEED = """\
{
  // what Hugging Face's Trainer reads
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": 4,
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": "auto", "warmup_num_steps": 100}},
  "bf16": {"enabled": "auto"},
  "zero_optimization": {
    "stage": 2,  # partitions gradients
    "allgather_bucket_size": 5e8,
    "overlap_comm": True,
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
  },
  "gradient_clipping": 1.0,
}
"""


class Leaf(NamedTuple):
    """A parameter whose value is a scalar on the line of its key."""

    parameter: Parameter
    entry: Entry
    value: Scalar


class Source(NamedTuple):
    """A text, its lines, and its leaves (none if the text has problems)."""

    text: str
    lines: list[str]
    leaves: list[Leaf]


@cache
def yaml_sources() -> tuple[Source, ...]:
    """Return configurations in YAML or JSON, smallest first."""
    folders = (CONFIGS, CORPUS)
    paths = [p for folder in folders for p in folder.rglob("*") if p.suffix in (".yml", ".yaml", ".json")]
    texts = {path.read_text(encoding="utf-8") for path in paths}
    return tuple(_source(text) for text in sorted(texts, key=lambda text: (len(text), text)))


def _source(text: str) -> Source:
    given = File("my.yml", text)
    try:
        found = [] if draft([given]).problems else list(_leaves(given.mapping()))
    except Problems:
        found = []
    return Source(text, text.splitlines(), found)


def _leaves(tree: Mapping, path: str = "") -> Iterator[Leaf]:
    for entry in tree.entries:
        name = path + normal(entry.key)
        parameter = REGISTRY.find(name)
        if isinstance(entry.value, Mapping) and not parameter:
            yield from _leaves(entry.value, name + ".")
        elif parameter and isinstance(entry.value, Scalar) and entry.value.place.line == entry.place.line:
            yield Leaf(parameter, entry, entry.value)


@cache
def other_sources() -> tuple[Text, ...]:
    """Return files that only `migrate` reads, with names that give their type."""
    paths = sorted(REFERENCE.glob("deepspeed_*.txt"))
    documents = [Text("seed.txt", path.read_text(encoding="utf-8")) for path in paths]
    return (Text("pretrain.sh", SCRIPT), Text("ds_config.json", DEEPSPEED), *documents)

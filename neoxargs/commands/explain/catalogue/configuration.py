"""Problems of keys and values, and values that train.py does not support."""

from __future__ import annotations

from neoxargs.commands.explain.catalogue.entry import Entry, Example, row

PROBLEMS: dict[str, Entry] = {
    "unknown-key": row(
        "GPT-NeoX and DeepSpeed ignore many unknown keys. With a misspelt key, the default would stay in effect, and "
        "the run would train for days with an unintended value.",
        "lerning_rate: 0.001\n",
    ),
    "misplaced-key": row(
        "The key belongs to a section, but is outside that section or in a different section. DeepSpeed and GPT-NeoX "
        "would not read the key there.",
        "fp16:\nenabled: true\n",
    ),
    "dotted-key": row(
        "In a file, a section's keys are indented lines below its name; a dotted name works only "
        "with --set. DeepSpeed would not read the dotted name.",
        "fp16.enabled: true\n",
    ),
    "not-a-section": row(
        "A section consists of keys. If it were a single value, DeepSpeed would raise an error on every rank when it "
        "reads the JSON.",
        "fp16: true\n",
    ),
    "setting-of-another-type": row(
        "The setting belongs to an optimizer or scheduler other than the configured one, whose constructor would "
        "raise an error on every rank.",
        "optimizer: {type: Adam, params: {momentum: high}}\n",
    ),
    "type-mismatch": row(
        "The value does not have the parameter's type or is out of range. Python would accept such a value, and later "
        "the code on the ranks would fail or compute something unintended.",
        "hidden_size: big\n",
    ),
    "duplicate-key": row(
        "If a file contains a key twice, YAML parsers silently use the last value. GPT-NeoX does the same if two "
        "files set the key, one spelt with `_` and the other with `-`. The value that is dropped may be the intended "
        "one.",
        "seed: 1\nlr: 0.001\nseed: 2\n",
    ),
    "one-value-per-setting": row(
        "Megatron, DeepSpeed and GPT-NeoX have different names for the same setting. If the names are set to "
        "different values, each program would use the value under its own name.",
        "lr: 0.0006\noptimizer: {type: Adam, params: {lr: 0.00015}}\n",
    ),
    "retired-key-contradicts": row(
        "A retired GPT-NeoX key and a newer key set the same parameter. If their values differ, an old and a "
        "new GPT-NeoX version would train different models from the same file.",
        "geglu: true\nactivation: relu\n",
    ),
    "required-parameter-missing": Entry(
        "The number of layers, the hidden size, the number of attention heads and the sequence length define the "
        "model. They have no defaults and must be set.",
        Example("seed: 1\n", without=("hidden_size",)),
    ),
    "model-missing": Entry(
        "None of the files describes a model. Usually, the model's file is missing from the command line.",
        Example("seed: 1\n", without=("num_layers", "hidden_size", "num_attention_heads", "seq_length")),
    ),
    "dialect-unknown": row(
        "`dialect` selects the GPT-NeoX version whose defaults apply. It must be a date such as 2022-12-14 or a "
        "name such as neox-2021.",
        "dialect: neox-2030\n",
    ),
    "dialect-guessed": Entry(
        "GPT-NeoX has changed some defaults over the years (dropout, weight decay, gradient clipping). Without "
        "`dialect`, a run could use the defaults of a different year than intended.",
        Example("seed: 1\n", without=("dialect",)),
    ),
    "no-effect": row(
        "The run does not use a parameter that is set, either because no GPT run uses it or because another parameter "
        "disables it. The value would be silently ignored.",
        "pos_emb: learned\nrotary_pct: 0.25\n",
    ),
    "not-built": row(
        "GPT-NeoX or DeepSpeed supports this value, but deepy's train.py does not. If train.py ignored the value, it "
        "would train a different model. deepy can launch your own script with this value.",
        'attention_config: [[["gmlp"], "all"]]\n',
    ),
    "optimizer-unknown": row(
        "Neither deepy nor torch nor DeepSpeed has an optimizer with this name. Every rank would stop when it builds "
        "the optimizer.",
        "optimizer: {type: Adamm}\n",
    ),
    "autotuning-without-tuner": row(
        "In a run with autotuning.enabled, DeepSpeed measures a few steps and then exits. Only the autotuner, which "
        "autotuning_run starts, needs such runs; any other run would end without its last checkpoint."
    ),
    "muon-needs-whole-matrices": row(
        "Muon makes the update of each matrix orthogonal. Shards that are orthogonal one by one do not form an "
        "orthogonal matrix: the run would train differently for each number of tensor parallel ranks.",
        "{optimizer: {type: Muon, params: {lr: 0.001}}, model_parallel_size: 2}",
    ),
    "no-layer-counted": row(
        "pipe_partition_method counts the layers whose class names match its expression. If none does, DeepSpeed stops "
        "every rank when it builds the pipeline. GPT-NeoX's layers have other class names than those of train.py.",
        "{pipe_parallel_size: 2, pipe_partition_method: 'type:ParallelTransformerLayerPipe'}",
    ),
    "onebit-optimizer-needs-older-deepspeed": row(
        "The installed DeepSpeed release no longer has the 1-bit optimizers. Every rank would stop when it builds "
        "the optimizer."
    ),
}

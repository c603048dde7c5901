"""Problems of keys and values, and values that train.py does not support."""

from __future__ import annotations

from neoxargs.tools.explain.catalogue.entry import Entry, Example, row

PROBLEMS: dict[str, Entry] = {
    "unknown-key": row(
        "GPT-NeoX and DeepSpeed ignore many unknown keys. With a misspelt key the default would stay in effect, and "
        "the run would train for days with an unintended value.",
        "lerning_rate: 0.001\n",
    ),
    "misplaced-key": row(
        "The key belongs to a section but is outside of it, or in a different section. The key would not be read.",
        "fp16:\nenabled: true\n",
    ),
    "dotted-key": row(
        "In a file, a key of a section is an indented line below it; a dotted name works only in --set. DeepSpeed "
        "would not read the key.",
        "fp16.enabled: true\n",
    ),
    "not-a-section": row(
        "A section consists of keys. With a single value instead, DeepSpeed stops every rank when it reads the JSON.",
        "fp16: true\n",
    ),
    "setting-of-another-type": row(
        "The setting belongs to an optimizer or scheduler other than the configured one. The constructor of the "
        "configured one would raise an error on every rank.",
        "optimizer: {type: Adam, params: {momentum: high}}\n",
    ),
    "type-mismatch": row(
        "The value does not have the type of the parameter, or is outside of its range. Python would pass the value "
        "on until code on the ranks fails, or compares a string with a number.",
        "hidden_size: big\n",
    ),
    "duplicate-key": row(
        "Of a key given twice in one file, YAML parsers silently use the last value, and GPT-NeoX does the same with a "
        "later file that spells the key with `-`. The value that is not used may be the intended one.",
        "seed: 1\nlr: 0.001\nseed: 2\n",
    ),
    "one-value-per-setting": row(
        "Megatron, DeepSpeed and GPT-NeoX have different names for the same setting. With two different values, each "
        "program would use the value of the name that it reads.",
        "lr: 0.0006\noptimizer: {type: Adam, params: {lr: 0.00015}}\n",
    ),
    "retired-key-contradicts": row(
        "A key that GPT-NeoX has retired sets the same parameter as a newer key. With two different values, an old "
        "and a new version of GPT-NeoX would train different models from the same file.",
        "geglu: true\nactivation: relu\n",
    ),
    "required-parameter-missing": Entry(
        "The number of layers, hidden size, number of attention heads and sequence length define the model. They have "
        "no defaults and must be set.",
        Example("seed: 1\n", without=("hidden_size",)),
    ),
    "model-missing": Entry(
        "None of the files describes a model; usually the model's file is missing on the command line.",
        Example("seed: 1\n", without=("num_layers", "hidden_size", "num_attention_heads", "seq_length")),
    ),
    "dialect-unknown": row(
        "A dialect is a date: it selects the version of GPT-NeoX whose defaults apply. This value is neither a date "
        "nor the name of a dialect.",
        "dialect: neox-2030\n",
    ),
    "dialect-guessed": Entry(
        "GPT-NeoX has changed some defaults over the years (dropout, weight decay, gradient clipping). Without a "
        "dialect, the same file could be trained with the defaults of a different year than intended.",
        Example("seed: 1\n", without=("dialect",)),
    ),
    "no-effect": row(
        "A parameter is set that this run does not use, because it never has an effect or because another parameter "
        "disables it. The intended change would silently have no effect.",
        "pos_emb: learned\nrotary_pct: 0.25\n",
    ),
    "not-built": row(
        "GPT-NeoX or DeepSpeed support this value, but deepy's train.py does not. If train.py ignored the value, it "
        "would train a different model. deepy can launch your own script with this value.",
        'attention_config: [[["mamba"], "all"]]\n',
    ),
    "optimizer-unknown": row(
        "Neither deepy nor torch nor DeepSpeed has an optimizer of this name; every rank would stop when it builds the "
        "optimizer.",
        "optimizer: {type: Adamm}\n",
    ),
    "onebit-optimizer-needs-older-deepspeed": row(
        "The installed release of DeepSpeed no longer has the 1-bit optimizers: every rank would stop when it builds "
        "the optimizer."
    ),
}

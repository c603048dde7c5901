"""Keys, values and what train.py can do with them."""

from __future__ import annotations

from neoxargs.tools.explain.catalogue.entry import Entry, Example, row

PROBLEMS: dict[str, Entry] = {
    "unknown-key": row(
        "GPT-NeoX and DeepSpeed read over many keys that they do not know. A misspelt one would leave its default in "
        "place, and the run trains for days with a value that nobody chose.",
        "lerning_rate: 0.001\n",
    ),
    "misplaced-key": row(
        "The key belongs to a section, and stands outside of it (or in another). There it would not be read.",
        "fp16:\nenabled: true\n",
    ),
    "dotted-key": row(
        "In a file, nested keys are nested lines; a dot names them only in --set. DeepSpeed would not read the key.",
        "fp16.enabled: true\n",
    ),
    "not-a-section": row(
        "A section has keys of its own. With one value in its place, DeepSpeed stops every rank when it reads it.",
        "fp16: true\n",
    ),
    "setting-of-another-type": row(
        "The setting belongs to another optimizer or scheduler than the one that is written, whose constructor would "
        "refuse it on every rank.",
        "optimizer: {type: Adam, params: {momentum: high}}\n",
    ),
    "type-mismatch": row(
        "The value has another type than the parameter, or lies outside of its range. Python would carry it along "
        "until something on the ranks fails with it, or compares a text with a number.",
        "hidden_size: big\n",
    ),
    "duplicate-key": row(
        "YAML and GPT-NeoX silently take one of two values for a key, the last or the one of the last file. The other, "
        "perhaps the one that was meant, is lost.",
        "seed: 1\nlr: 0.001\nseed: 2\n",
    ),
    "one-value-per-setting": row(
        "Megatron, DeepSpeed and GPT-NeoX have names of their own for the same setting. Where a file gives it two "
        "values, each receiver would follow the name that it knows.",
        "lr: 0.0006\noptimizer: {type: Adam, params: {lr: 0.00015}}\n",
    ),
    "retired-key-contradicts": row(
        "A key that GPT-NeoX has retired says what another key says today. With two different values, the same file "
        "would train two models, depending on the year of the program.",
        "geglu: true\nactivation: relu\n",
    ),
    "required-parameter-missing": Entry(
        "What the model is cannot be guessed: its depth, its width, its heads and its sequence length have no default.",
        Example("seed: 1\n", without=("hidden_size",)),
    ),
    "model-missing": Entry(
        "None of the files describes a model; most often the file of the model was left out on the command line.",
        Example("seed: 1\n", without=("num_layers", "hidden_size", "num_attention_heads", "seq_length")),
    ),
    "dialect-unknown": row(
        "A dialect is a day: it decides which year's defaults of GPT-NeoX hold. Another name would mean none of them.",
        "dialect: neox-2030\n",
    ),
    "dialect-guessed": Entry(
        "GPT-NeoX changed some defaults over the years (dropout, weight decay, gradient clipping), and a file that "
        "does not say its dialect trains another model with the defaults of another year.",
        Example("seed: 1\n", without=("dialect",)),
    ),
    "no-effect": row(
        "A value is written that nothing reads in this run, because the parameter has no effect at all or another one "
        "switches it off. Whoever wrote it expects something that does not happen.",
        "pos_emb: learned\nrotary_pct: 0.25\n",
    ),
    "not-built": row(
        "GPT-NeoX or DeepSpeed know this value, and deepy's train.py does not. It says so rather than leave it out and "
        "train something else; a script of your own may be launched with it.",
        'attention_config: [[["mamba"], "all"]]\n',
    ),
    "optimizer-unknown": row(
        "No optimizer has this name, neither here nor in torch or DeepSpeed; every rank would stop when it is built.",
        "optimizer: {type: Adamm}\n",
    ),
    "onebit-optimizer-needs-older-deepspeed": row(
        "DeepSpeed has removed its 1-bit optimizers. With the installed release every rank would stop when the "
        "optimizer is built."
    ),
}

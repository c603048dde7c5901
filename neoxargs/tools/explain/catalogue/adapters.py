"""Problems of adapters (`lora`) and of other training with a frozen model."""

from __future__ import annotations

from neoxargs.tools.explain.catalogue.entry import Entry, row

PROBLEMS: dict[str, Entry] = {
    "base-checkpoint-missing": row(
        "A checkpoint of adapters does not contain the frozen model. Without the model's own checkpoint, the adapters "
        "would change random weights."
    ),
    "base-checkpoint-differs": row(
        "Adapters are trained for the weights of one model. With another one, the result is not what was trained."
    ),
    "checkpoint-of-adapters": row("A checkpoint that contains only what was trained cannot start a run without it."),
    "checkpoint-without-adapters": row(
        "The checkpoint of a complete model is loaded as the frozen one with base_checkpoint, not as a run to continue."
    ),
    "checkpoint-other-adapters": row(
        "The rank and the targets of adapters determine the shapes of their matrices, so a run continues only with "
        "those of its checkpoint."
    ),
    "lora-rank-above-side": row(
        "The change of a matrix with m rows and n columns has at most the rank min(m, n). Adapters of a higher rank "
        "have more weights to train and to store, but no further changes that they could express."
    ),
    "adapters-unreadable": row(
        "A folder in peft's format contains adapter_config.json and adapter_model.safetensors. One of them is missing "
        "or damaged, or lacks a tensor."
    ),
    "adapters-other-model": row("The adapters belong to modules that the configured model does not have."),
    "adapters-not-expressible": row(
        "The adapters use a feature of peft that deepy's adapters do not have, such as another setting, or adapters in "
        "only some of the layers."
    ),
    "adapters-without-model": row(
        "A folder in peft's format does not contain the model, whose sizes determine those of the adapters."
    ),
    "adapters-missing": row("Only a run with `lora` has adapters that `deepy export --adapter` could write."),
}

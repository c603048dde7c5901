"""Problems of adapters (`lora`) and of other training with a frozen model."""

from __future__ import annotations

from neoxargs.commands.explain.catalogue.entry import Entry, row

PROBLEMS: dict[str, Entry] = {
    "base-checkpoint-missing": row(
        "An adapter checkpoint does not contain the frozen model. Without the model's own checkpoint, the adapters "
        "would be applied to random weights."
    ),
    "base-checkpoint-damaged": row(
        "Each file of the checkpoint with the frozen model, or with the reference model, is compared with the checksum "
        "that was computed when it was written. This file has changed since, for example on a failing disk."
    ),
    "base-checkpoint-differs": row(
        "Adapters are trained for the weights of one model. With the weights of any other model, they give wrong "
        "results."
    ),
    "checkpoint-of-adapters": row(
        "The checkpoint contains only adapters or a soft prompt, without the frozen model. "
        "A run that trains a complete model cannot start from this checkpoint."
    ),
    "checkpoint-without-adapters": row(
        "The checkpoint contains a complete model, without adapters or a soft prompt, so there is no run with a "
        "frozen model to continue. `base_checkpoint` loads such a checkpoint as the frozen model."
    ),
    "checkpoint-other-adapters": row(
        "The rank and the targets of adapters determine the shapes of their matrices, so a run can continue only "
        "with the rank and the targets that its checkpoint was written with."
    ),
    "lora-rank-above-side": row(
        "A change to a matrix with m rows and n columns has a rank of at most min(m, n). Adapters of a higher rank "
        "have more weights to train and store, but cannot express any additional changes."
    ),
    "adapters-unreadable": row(
        "A folder in peft's format contains adapter_config.json and adapter_model.safetensors. One of these files is "
        "missing or damaged, or lacks a tensor."
    ),
    "adapters-other-model": row("The adapters belong to modules that the configured model does not have."),
    "adapters-not-expressible": row(
        "The adapters use a feature of peft that deepy does not support, such as adapters in only some of the layers."
    ),
    "adapters-without-model": row(
        "A folder in peft's format contains adapters, but not the sizes of the model that they belong to. deepy "
        "needs the model's configuration to import the adapters."
    ),
    "adapters-missing": row("Only a run with `lora` has adapters that `deepy export --adapter` can write."),
}

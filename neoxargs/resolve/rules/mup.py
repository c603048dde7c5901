"""muP: what the maximal update parametrization requires."""

from __future__ import annotations

from neoxargs.resolve.rules.rule import Findings, check, refuse, warn

#: Optimizers for which muP defines how the learning rate scales with the width.
MUP_OPTIMIZERS = ("adam", "adamw", "muadam", "muadamw", "sgd", "musgd")
MUP_ONLY_OPTIMIZERS = ("muadam", "muadamw", "musgd")
#: Initializations whose standard deviation does not already depend on the width.
INIT_METHODS = ("normal", "scaled_normal", "single_residual_scaled_normal")
#: Those with which GPT-NeoX trains all the same; muP divides their standard deviation once more, there and here.
WIDTH_INIT_METHODS = ("small_init", "wang_init")


@check
def mup_needs_base_shapes_file(
    use_mup: bool, base_shapes_file: str | None, save_base_shapes: bool, coord_check: bool
) -> Findings:
    """muP scales learning rates and initial weights by the ratio of a layer's width to its width in a base model.
    Without the shapes of the base model, nothing is scaled, and hyperparameters do not transfer from the small model.

        use_mup: true
    """
    if not base_shapes_file and (save_base_shapes or (use_mup and not coord_check)):
        name = "save_base_shapes" if save_base_shapes else "use_mup"
        advice = "set base_shapes_file to the file with the base model's shapes; a run with save_base_shapes: true "
        yield refuse(f"{name} (true) needs base_shapes_file", f"{advice}writes this file", [name, "base_shapes_file"])


@check
def mup_width_scale_at_least_2(save_base_shapes: bool, coord_check: bool, mup_width_scale: int) -> Findings:
    """The dimensions that grow with the width are found by comparing the model with one that is mup_width_scale times
    as wide. With a scale of 1, the two models are the same, no dimension appears to grow, and muP scales nothing.

        save_base_shapes: true
        base_shapes_file: shapes
        mup_width_scale: 1
    """
    if mup_width_scale <= 1 and (save_base_shapes or coord_check):
        what = f"mup_width_scale ({mup_width_scale}) must be at least 2"
        yield refuse(what, "remove mup_width_scale to use the default of 2", about=["mup_width_scale"])


@check
def mup_needs_adam_or_sgd(use_mup: bool, optimizer__type: str, scheduler__type: str | None) -> Findings:
    """muP scales the learning rate of each layer by its width. The rules are known for Adam and SGD only, and the
    schedule must keep one learning rate per layer. With another optimizer or DeepSpeed's schedules, the scaling would
    be wrong or lost.

        use_mup: true
        base_shapes_file: shapes
        optimizer: {type: Lion}
    """
    kind, about = optimizer__type.lower(), ["use_mup", "optimizer.type"]
    if not use_mup and kind in MUP_ONLY_OPTIMIZERS:
        yield refuse(f"optimizer.type ({optimizer__type}) needs use_mup", "set use_mup to true", about)
    elif use_mup and kind not in MUP_OPTIMIZERS:
        what = f"use_mup does not support optimizer.type ({optimizer__type})"
        yield refuse(what, "set optimizer.type to Adam, AdamW or SGD", about)
    elif use_mup and scheduler__type:
        yield refuse(
            f"use_mup does not support scheduler.type ({scheduler__type}), which has one learning rate for all layers",
            "remove the scheduler section, and choose the schedule with lr_decay_style",
            about=["use_mup", "scheduler.type"],
        )


@check
def mup_needs_normal_init(use_mup: bool, init_method: str, output_layer_init_method: str) -> Findings:
    """muP scales the standard deviation of initial weights down with the width. If a method already computes the
    standard deviation from the width, it would be scaled down twice, and wide models would start with weights that are
    too small. GPT-NeoX accepts small_init and wang_init, so these are a warning.

        use_mup: true
        base_shapes_file: shapes
        init_method: small_init
    """
    for name, method in (("init_method", init_method), ("output_layer_init_method", output_layer_init_method)):
        if use_mup and method not in INIT_METHODS:
            advice, about = f"set {name} to {INIT_METHODS[0]} or {INIT_METHODS[1]}", ["use_mup", name]
            if method in WIDTH_INIT_METHODS:
                what = f"{name} ({method}) computes the standard deviation from the width, and use_mup divides it again"
                yield warn(what, advice, about)
            else:
                yield refuse(f"use_mup does not support {name} ({method})", advice, about)
            return

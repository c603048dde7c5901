"""muP: what goes with the maximal update parametrisation."""

from __future__ import annotations

from neoxargs.resolve.rules.rule import Finding, check, refuse

#: Optimizers of which muP knows how their steps depend on the width.
OPTIMIZERS = ("adam", "adamw", "muadam", "muadamw", "sgd", "musgd")
MUP_ONLY = ("muadam", "muadamw", "musgd")
BOTH = ("use_mup", "optimizer.type")
#: Initial deviations that do not depend on the width by themselves.
METHODS = ("normal", "scaled_normal", "single_residual_scaled_normal")


@check
def mup_needs_base_shapes_file(
    use_mup: bool, base_shapes_file: str | None, save_base_shapes: bool, coord_check: bool
) -> Finding | None:
    """muP scales learning rates and initial weights by how much wider a layer is than in a base model. Without the
    base model's shapes nothing is scaled, and hyperparameters do not carry over from the small model.

        use_mup: true
    """
    if base_shapes_file or not (save_base_shapes or (use_mup and not coord_check)):
        return None
    name = "save_base_shapes" if save_base_shapes else "use_mup"
    advice = "write base_shapes_file: FILE; save_base_shapes: true makes it"
    return refuse(f"{name} (true) needs base_shapes_file", advice, about=[name, "base_shapes_file"])


@check
def mup_width_scale_at_least_2(save_base_shapes: bool, coord_check: bool, mup_width_scale: int) -> Finding | None:
    """Which dimensions grow with the width is found by comparing the model with one mup_width_scale times as wide.
    With a scale of 1 both are the same, no dimension is seen to grow, and muP scales nothing.

        save_base_shapes: true
        base_shapes_file: shapes
        mup_width_scale: 1
    """
    if mup_width_scale > 1 or not (save_base_shapes or coord_check):
        return None
    what = f"mup_width_scale ({mup_width_scale}) must be at least 2"
    return refuse(what, "the default is 2", about=["mup_width_scale"])


@check
def mup_needs_adam_or_sgd(use_mup: bool, optimizer__type: str, scheduler__type: str | None) -> Finding | None:
    """muP divides the learning rate of wide layers, by rules that are known for Adam and SGD and with a schedule that
    keeps one rate per layer. With another optimizer or DeepSpeed's schedule the scaling would be lost or wrong.

        use_mup: true
        base_shapes_file: shapes
        optimizer: {type: Lion}
    """
    kind = optimizer__type.lower()
    if not use_mup:
        what = f"optimizer.type ({optimizer__type}) needs use_mup"
        return refuse(what, "write use_mup: true", about=BOTH) if kind in MUP_ONLY else None
    if kind not in OPTIMIZERS:
        what = f"use_mup does not go with optimizer.type ({optimizer__type})"
        return refuse(what, "write type: Adam, AdamW or SGD", about=BOTH)
    if scheduler__type:
        what = f"use_mup does not go with scheduler.type ({scheduler__type}), which gives all layers one learning rate"
        advice = "write lr_decay_style instead of the section scheduler"
        return refuse(what, advice, about=["use_mup", "scheduler.type"])
    return None


@check
def mup_needs_normal_init(use_mup: bool, init_method: str, output_layer_init_method: str) -> Finding | None:
    """muP divides the standard deviation of initial weights by the width. A method that computes it from the width
    itself would be divided twice, and wide models would begin with weights that are too small.

        use_mup: true
        base_shapes_file: shapes
        init_method: small_init
    """
    for name, method in (("init_method", init_method), ("output_layer_init_method", output_layer_init_method)):
        if use_mup and method not in METHODS:
            what = f"use_mup does not go with {name} ({method})"
            return refuse(what, f"write {name}: {METHODS[0]} or {METHODS[1]}", about=["use_mup", name])
    return None

"""muP: what goes with the maximal update parametrisation."""

from __future__ import annotations

from neoxargs.resolve.rules.rule import Refusal, check

#: Optimizers of which muP knows how their steps depend on the width.
OPTIMIZERS = ("adam", "adamw", "muadam", "muadamw", "sgd", "musgd")
#: Initial deviations that do not depend on the width by themselves.
METHODS = ("normal", "scaled_normal", "single_residual_scaled_normal")


@check
def mup_knows_its_base(
    use_mup: bool, base_shapes_file: str | None, save_base_shapes: bool, coord_check: bool
) -> Refusal:
    """muP scales from a base model's shapes; `coord_check` can take those of the configuration itself."""
    if base_shapes_file or not (save_base_shapes or (use_mup and not coord_check)):
        return None
    name = "save_base_shapes" if save_base_shapes else "use_mup"
    return f"{name} (true) needs base_shapes_file", "write base_shapes_file: FILE; save_base_shapes: true makes it"


@check
def another_width_is_wider(save_base_shapes: bool, coord_check: bool, mup_width_scale: int) -> Refusal:
    """Which dimensions grow is seen where a wider model's differ."""
    if mup_width_scale > 1 or not (save_base_shapes or coord_check):
        return None
    return f"mup_width_scale ({mup_width_scale}) must be at least 2", "the default is 2"


@check
def mup_scales_the_optimizer(use_mup: bool, optimizer__type: str, scheduler__type: str | None) -> Refusal:
    """muP divides the learning rates of wide layers, which the optimizer and its schedule must allow."""
    kind = optimizer__type.lower()
    if not use_mup:
        mup_only = kind in ("muadam", "muadamw", "musgd")
        return (f"optimizer.type ({optimizer__type}) needs use_mup", "write use_mup: true") if mup_only else None
    if kind not in OPTIMIZERS:
        return f"use_mup does not go with optimizer.type ({optimizer__type})", "write type: Adam, AdamW or SGD"
    if scheduler__type:
        what = f"use_mup does not go with scheduler.type ({scheduler__type}), which gives all layers one learning rate"
        return what, "write lr_decay_style instead of the section scheduler"
    return None


@check
def mup_scales_initial_weights(use_mup: bool, init_method: str, output_layer_init_method: str) -> Refusal:
    """muP divides deviations that do not know of the width."""
    for name, method in (("init_method", init_method), ("output_layer_init_method", output_layer_init_method)):
        if use_mup and method not in METHODS:
            return f"use_mup does not go with {name} ({method})", f"write {name}: {METHODS[0]} or {METHODS[1]}"
    return None

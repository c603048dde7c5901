"""What our own train.py and generate.py can run today, so that they say what they cannot instead of leaving it out.

Apart from the rules: a script of somebody else's may be launched with a configuration that train.py cannot run.
A feature that gets built loses its row here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neoxargs.problems import Problem, listed, near
from neoxargs.registry import ABSENT, REGISTRY
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules.spellings import shown

#: Ours, torch's, and those of DeepSpeed that need no 1-bit messages.
OPTIMIZERS = (
    "Adam", "AdamW", "cpu_adam", "cpu_torch_adam", "SGD", "Lion", "sm3", "madgrad_wd", "Lamb", "Muon", "Adagrad",
    "RMSprop", "RAdam", "NAdam", "Adamax", "Adadelta", "ASGD", "Rprop",
)  # fmt: skip
#: DeepSpeed's others: not built yet, but no slips of the pen for one that is.
OTHER_OPTIMIZERS = ("OneBitAdam", "ZeroOneAdam", "OneBitLamb", "MuAdam", "MuAdamW", "MuSGD")
#: Parameter -> the values that are implemented; text is compared without regard to case. First the model's.
MODEL: dict[str, tuple[Any, ...]] = {
    "pos_emb": ("learned", "rotary", "none"),
    "norm": ("layernorm", "rmsnorm", "scalenorm", "non_parametric_layernorm"),
    "apply_residual_connection_post_layernorm": (False,),
    "use_qk_layernorm": (False,),
    "sliding_window_width": (None,),
    "num_unique_layers": (None,),
    "fp16_lm_cross_entropy": (False,),
    "moe_num_experts": (1,),
    "use_mup": (False,),
    "soft_prompt_tuning.enabled": (False,),
    "te_columnparallel": (False,),
    "te_rowparallel": (False,),
    "te_layernorm_mlp": (False,),
    "te_mha": (False,),
    "te_fp8_mha": (False,),
}
#: What only training reads: the optimizer, the data, checkpoints.
TRAINING: dict[str, tuple[Any, ...]] = {
    "sequence_parallel": (False,),
    "optimizer.type": OPTIMIZERS,
    "use_bnb_optimizer": (False,),
    "amp.enabled": (False,),
    "torch_autocast.enabled": (False,),
    "elasticity.enabled": (False,),
    "curriculum_learning.enabled": (False,),
    "data_efficiency.enabled": (False,),
    "progressive_layer_drop.enabled": (False,),
    "zero_optimization.zenflow.overlap_step": (False,),
    "train_impl": ("normal",),
    "train_epochs": (None,),
    "z_loss": (0.0,),
    "adlr_autoresume": (False,),
    "dataset_impl": ("gpt2",),
    "pack_impl": ("packed",),
    "reset_position_ids": (False,),
    "reset_attention_mask": (False,),
    "allow_chopped": (True,),
    "train_label_data_paths": (None,),
    "valid_label_data_paths": (None,),
    "test_label_data_paths": (None,),
    "char_level_ppl": (False,),
    "checkpoint_validation_with_forward_pass": (False,),
    "s3_path": (None,),
    "eval_tasks": (None,),
}
#: Layers that train.py computes; both are the same attention, and torch chooses the kernel.
LAYERS = ("global", "flash")

#: What train.py leaves out without harm to the run: reports that it does not make yet.
NOT_REPORTED: dict[str, tuple[Any, ...]] = {
    "log_grad_pct_zeros": (False,),
    "log_param_norm": (False,),
    "log_optimizer_states": (False,),
    "log_gradient_noise_scale": (False,),
    "memory_profiling": (False,),
}


def unsupported(config: Config, training: bool = True) -> list[Problem]:
    """What train.py cannot do yet (errors), and the reports it will not make (warnings).

    training: False for generate.py, which only needs the model.
    """
    rows = MODEL | TRAINING if training else MODEL
    problems = [
        _not_built(config, name, values) for name, values in rows.items() if not _is_among(config, name, values)
    ]
    problems += _other_layers(config)
    return problems + (list(_not_reported(config)) if training else [])


def _not_reported(config: Config) -> Iterator[Problem]:
    for name, values in NOT_REPORTED.items():
        if not _is_among(config, name, values):
            what = f"{name} ({shown(config.get(name))}) has no effect in train.py yet"
            yield Problem(what, config.place(name), "the run goes on without it", severity="warning")


def _is_among(config: Config, name: str, values: tuple[Any, ...]) -> bool:
    value = config.get(name)
    if isinstance(value, str):
        return value.lower() in [choice.lower() for choice in values if isinstance(choice, str)]
    return value is ABSENT or value in values


def _not_built(config: Config, name: str, values: tuple[Any, ...]) -> Problem:
    if name == "optimizer.type" and (meant := _meant(str(config.get(name)))):
        return Problem(f"there is no optimizer {config.get(name)}", config.place(name), meant)
    what = f"{name} ({shown(config.get(name))}) is not built into train.py yet"
    return Problem(what, config.place(name), _instead(name, values))


def _meant(kind: str) -> str:
    """`did you mean Adam?` where the name of an optimizer is mistyped."""
    names = {name.lower(): name for name in (*OPTIMIZERS, *OTHER_OPTIMIZERS)}
    found = [] if kind.lower() in names else near(kind.lower(), names)
    return f"did you mean {' or '.join(names[name] for name in found)}?" if found else ""


def _instead(name: str, values: tuple[Any, ...]) -> str:
    """What to write: the default where it is built, with its like."""
    choices = [shown(value) for value in values if value is not None]
    if not choices or choices == [shown(REGISTRY.parameters[name].default)]:
        return f"leave {name} out"
    return f"train.py can do {listed(choices, 'and')}"


def _other_layers(config: Config) -> Iterator[Problem]:
    other = sorted(set(config.get("attention_config") or ()) - set(LAYERS))
    if other:
        what = f"attention_config has layers that are not built into train.py yet: {listed(other, 'and')}"
        yield Problem(what, config.place("attention_config"), f"train.py can do {listed(LAYERS, 'and')}")

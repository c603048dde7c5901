"""Settings that train.py and generate.py do not support, which are reported instead of silently ignored.

This is separate from the rules, because a user's own script may support it. A parameter that the registry declares
`not built` must keep its default; the tables here list parameters of which only some values are supported. The reasons
are in the declarations (`refused`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from neoxargs.base.problems import Problem, close_matches, listed
from neoxargs.config.config import Config
from neoxargs.facts.gradient_sum import GradientSum, gradient_sum
from neoxargs.facts.layer_kinds import RECURRENT
from neoxargs.facts.layout import NOT_COUNTED, is_counted, layer_pattern, pipeline_layers
from neoxargs.facts.objectives import OBJECTIVES
from neoxargs.facts.optimizers import OPTIMIZERS
from neoxargs.registry import ABSENT, REGISTRY, Parameter, architectures, model, moe
from neoxargs.registry.plugins import WIDENED
from neoxargs.resolve.effects.no_effect import differs_from_default, no_effect, no_effect_warnings
from neoxargs.resolve.rules.model import LAYER_KINDS
from neoxargs.resolve.rules.synonyms import yaml_form

#: Subjects of the registry that generate.py reads like train.py.
MODEL_SUBJECTS = (model.__name__, architectures.__name__, moe.__name__)
#: Parameter that only training reads -> supported values.
TRAINING_VALUES: dict[str, tuple[Any, ...]] = {
    "optimizer.type": tuple(OPTIMIZERS),
    "optimizer.params.comm_backend_name": ("nccl", "gloo"),
    "train_impl": tuple(OBJECTIVES),
    "dataset_impl": ("gpt2", "pairwise"),
    "checkpoint.writer.type": ("FAST", "PYTHON", "fast", "python"),
}
#: Supported kinds of layers. `global` and `flash` compute the same; torch chooses the kernel.
LAYERS = (
    "global", "flash", "local", "sparse_fixed", "sparse_variable", "bigbird", "bslongformer", *RECURRENT,
)  # fmt: skip


def trainer_problems(config: Config, training: bool = True) -> list[Problem]:
    """Return what train.py does not support (errors), and parameters without effect (warnings).

    training: False for generate.py, which reads only the parameters of the model.
    """
    rows = supported_values(training)
    if training and _writes_unreadable_names(config):
        rows["checkpoint.writer.type"] = ("PYTHON",)
    problems = config.found(*(partial(_unsupported, config, name, values) for name, values in rows.items()))
    refused = [name for problem in problems for name in problem.about]
    checks: list[Callable[[Config], Iterable[Problem]]] = [_other_layers]
    if training:
        checks += [_tuned_without_tuner, _counts_no_layer, _sums_with_less_precision, _other_sums]
        refused += [name for name in rows if not config.knows(name)]  # it may be
        checks.append(partial(no_effect_warnings, refused=refused))
    else:
        checks.append(_dropped_tokens)
    return problems + config.found(*(partial(check, config) for check in checks))


def plugin_value_problems(config: Config) -> Iterator[Problem]:
    """Yield errors for values that a plugin added to a parameter's choices; only the plugin's script supports them."""
    for name, values in WIDENED.items():
        if (value := config.get(name)) in values and name != "launcher":  # a plugin's launcher starts train.py
            what = f"train.py does not support {name}: {yaml_form(value)}, a value that plugin {values[value]} adds"
            hint = f"launch the plugin's own script instead of train.py, or set {name} to a built-in value"
            yield Problem(what, config.place(name), hint, id="not-built", about=(name,))


def supported_values(training: bool = True) -> dict[str, tuple[Any, ...]]:
    """Return parameter -> supported values, for parameters with unsupported values."""
    defaults = {
        parameter.name: (parameter.default,)
        for parameter in REGISTRY.parameters.values()
        if parameter.effect == "not built" and (training or parameter.group.__module__ in MODEL_SUBJECTS)
    }
    return (TRAINING_VALUES if training else {}) | defaults


def _writes_unreadable_names(config: Config) -> bool:
    """Return whether DeepSpeed's fast writer is on and adds `-RANK.RANKS` to the names of files.

    DeepSpeed 0.19.6 does so unless ZeRO stage 3 is used (`optimize_dp_state` in its engine).
    """
    section = "checkpoint.writer"
    is_on = section in config.sections or any(name.startswith(f"{section}.") for name in config.values)
    return is_on and config.zero_optimization.stage != 3


def _dropped_tokens(config: Config) -> Iterator[Problem]:
    """Yield a warning if experts can drop tokens of the texts that a trained model evaluates or continues."""
    options, name = config.moe, "moe_eval_capacity_factor"
    enough = -(-options.moe_num_experts // options.moe_top_k)  # all tokens of a micro batch may choose the same expert
    if options.moe_num_experts == 1 or not options.moe_token_dropping or options.moe_eval_capacity_factor >= enough:
        return
    what = "moe_token_dropping: which tokens experts drop depends on later tokens and on the micro batch, and so do "
    what += "losses; while text is generated, prompts lose tokens, and what follows hardly any"
    hint, about = f"set {name}: {enough} to drop none", ("moe_token_dropping", name)
    yield Problem(what, config.place(about[0]), hint, (), "warning", id="experts-drop-tokens", about=about)


def _sums_with_less_precision(config: Config) -> Iterator[Problem]:
    """Yield a warning if the user lets the ranks sum gradients in fewer bits than each rank does."""
    name, reduction = "communication_data_type", _gradient_sum(config)
    if reduction is None or not reduction.rounds:
        return
    what = (
        f"{name} ({reduction.dtype}) rounds the gradients that each rank sums in {reduction.accumulated}, and again at "
        f"each of the {reduction.ranks} data parallel ranks: expect a relative error of their mean of "
        f"{100 * reduction.error:.2g}% (root mean square, in a ring)"
    )
    hint = f"remove {name}, so that train.py sums them in {reduction.accumulated}"
    yield Problem(what, config.place(name), hint, (), "warning", id="gradients-rounded", about=(name,))


def _gradient_sum(config: Config) -> GradientSum | None:
    """Return how gradients are summed over replicas; None as long as their number is not known."""
    known = all(isinstance(config.get(name), int) for name in ("world_size", "gradient_accumulation_steps"))
    return gradient_sum(config) if known else None


#: Settings of how DeepSpeed's ZeRO reduces gradients, which its optimizer for bf16 does not have.
OF_ZERO = ("reduce_scatter", "contiguous_gradients", "use_multi_rank_bucket_allreduce", "round_robin_gradients")
OF_BUCKETS = ("overlap_comm", "reduce_bucket_size")


def _other_sums(config: Config) -> Iterator[Problem]:
    """Yield a warning about settings of ZeRO's sums where DeepSpeed's optimizer for bf16 with sums in fp32 runs.

    Not with one replica, where none matters: the same file is used on other layouts.
    """
    reduction = _gradient_sum(config)
    if reduction is None or config.zero_optimization.stage != 1 or reduction.way not in ("buckets", "all-reduce"):
        return
    reason = "train.py itself reduces gradients that are summed in fp32 with bf16 and ZeRO stage 1"
    settings: tuple[str, ...] = OF_ZERO
    if reduction.way == "all-reduce":
        reason = "DeepSpeed all-reduces all gradients at once after the last backward pass, because they are summed in "
        reason += f"fp32 and communication_data_type is {reduction.dtype}"
        settings += OF_BUCKETS
    names = [f"zero_optimization.{name}" for name in settings]
    if found := [name for name in names if differs_from_default(name, config)]:
        yield no_effect(config, found, reason)


def _tuned_without_tuner(config: Config) -> Iterator[Problem]:
    """Yield an error for autotuning that is not started by the autotuner: DeepSpeed ends such a run early."""
    if config.get("autotuning.enabled") and not config.runner_extras.autotuning_run:
        steps = config.get("autotuning.end_profile_step")
        what = f"with autotuning.enabled (true), DeepSpeed ends the run after {steps} steps "
        what += "(autotuning.end_profile_step)"
        hint = "remove autotuning.enabled, or start the autotuner with autotuning_run: tune"
        place, about = config.place("autotuning.enabled"), ("autotuning.enabled", "autotuning_run")
        yield Problem(what, place, hint, id="autotuning-without-tuner", about=about)


def _counts_no_layer(config: Config) -> Iterator[Problem]:
    """Yield an error if `pipe_partition_method: type:…` matches no layer, for example by a class name of GPT-NeoX."""
    name, method = "pipe_partition_method", config.parallel.pipe_partition_method
    if not config.parallel.pipe_parallel_size or not layer_pattern(method):
        return
    if not all(map(config.knows, ("num_layers", "attention_config"))):
        return
    names = dict.fromkeys(layer for layer in pipeline_layers(config) if layer != NOT_COUNTED)
    if not any(is_counted(layer, method) for layer in names):
        what = f"{name} ({method}) matches no layer of the pipeline: {listed(list(names), 'and')}"
        yield Problem(what, config.place(name), f"set {name} to type:transformer", id="no-layer-counted", about=(name,))


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    if isinstance(value, str) and value:
        return value.lower() in [choice.lower() for choice in values if isinstance(choice, str)]
    return value in (ABSENT, None, "") or value in values


def _unsupported(config: Config, name: str, values: tuple[Any, ...]) -> Iterator[Problem]:
    value = config.get(name)
    if _is_among(value, values):
        return
    kinds = {kind.lower(): kind for kind in OPTIMIZERS}
    likely = close_matches(str(value).lower(), kinds) if name == "optimizer.type" else []
    if likely and str(value).lower() not in kinds:
        what = f"optimizer.type ({value}) is not a known optimizer"
        meant = f"did you mean {' or '.join(kinds[kind] for kind in likely)}?"
        yield Problem(what, config.place(name), meant, id="optimizer-unknown", about=(name,))
        return
    what = f"{name} ({yaml_form(value)}) is not supported by train.py"
    if why := reason(REGISTRY.parameters[name], value):
        what += f": {why}"
    yield Problem(what, config.place(name), _instead(name, values), id="not-built", about=(name,))


def reason(parameter: Parameter, value: object) -> str:
    """Return why train.py does not support a value; for a list, the reasons of its entries joined by `;`."""
    if isinstance(parameter.refused, str):
        return parameter.refused
    by_value = {name.lower(): why for name, why in parameter.refused.items()}
    values = value if isinstance(value, list) else [value]
    return "; ".join(dict.fromkeys(by_value.get(str(each).lower(), by_value.get("", "")) for each in values))


def _instead(name: str, values: tuple[Any, ...]) -> str:
    """Return the hint: the supported values, or remove the parameter and what to write instead."""
    choices = [yaml_form(value) for value in values if value is not None]
    if not choices or choices == [yaml_form(REGISTRY.parameters[name].default)]:
        instead = REGISTRY.parameters[name].instead
        return f"remove {name}; {instead}" if instead else f"remove {name}"
    return f"set {name} to {listed(choices)}"


def _other_layers(config: Config) -> Iterator[Problem]:
    kinds = set(config.get("attention_config") or ()) & set(LAYER_KINDS)  # a check reports unknown ones
    other = sorted(kinds - set(LAYERS))
    if other:
        name, hint = "attention_config", f"use {listed(LAYERS)}"
        what = f"attention_config has layer types that train.py does not support: {listed(other, 'and')}; "
        what += reason(REGISTRY.parameters[name], other)
        yield Problem(what, config.place(name), hint, id="not-built", about=(name,))

"""Records which keys the installed DeepSpeed reads from its JSON, and which defaults it uses for missing ones."""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import re
from enum import Enum
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import deepspeed
from deepspeed.runtime import config as runtime_config
from deepspeed.runtime import constants
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.config_utils import DeepSpeedConfigModel

from tests.support.deepspeed_optimizers import of_optimizers, of_schedules

#: The version whose keys and defaults the registry records.
TESTED = "0.19.6"


def _there(path: str) -> Any:
    """Return an object of DeepSpeed by module:name, or a module; None in a version that does not have it."""
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(f"deepspeed.{module}")
    except ModuleNotFoundError:
        return None
    return getattr(found, name, None) if name else found


_MODELS = {
    "fp16": "runtime.precision_config:DeepSpeedFP16Config", "bf16": "runtime.precision_config:DeepSpeedBF16Config",
    "zero_optimization": "runtime.zero.config:DeepSpeedZeroConfig",
    "zero_optimization.offload_param": "runtime.zero.offload_config:DeepSpeedZeroOffloadParamConfig",
    "zero_optimization.offload_optimizer": "runtime.zero.offload_config:DeepSpeedZeroOffloadOptimizerConfig",
    "zero_optimization.zenflow": "runtime.zenflow.zenflow_config:ZenFlowConfig",
    "zero_optimization.leaf_module": "runtime.zero.leaf_module_config:DeepSpeedZeroLeafModuleConfig",
    "tensorboard": "monitor.config:TensorBoardConfig", "wandb": "monitor.config:WandbConfig",
    "csv_monitor": "monitor.config:CSVConfig", "comet": "monitor.config:CometConfig",
    "comms_logger": "comm.config:CommsLoggerConfig", "hybrid_engine": "runtime.config:HybridEngineConfig",
    "compile": "compile.config:CompileConfig", "timers.throughput": "utils.config:DeepSpeedThroughputTimerConfig",
    "weight_quantization": "inference.config:WeightQuantConfig",
    "tensor_parallel": "runtime.tensor_parallel.config:TPTrainingConfig",
    "tensor_parallel.tp": "runtime.tensor_parallel.config:TPConfig",
}  # fmt: skip
MODELS: dict[str, type[DeepSpeedConfigModel]] = {
    section: model for section, path in _MODELS.items() if (model := _there(path))
}

_CONSTANTS = {
    "compression_training.layer_reduction": ("compression.constants", ""),
    "data_efficiency.data_sampling.curriculum_learning": ("runtime.data_pipeline.constants", "CURRICULUM_LEARNING_"),
    "data_efficiency.data_sampling.dynamic_batching": ("runtime.data_pipeline.constants", "DYNAMIC_BATCHING_"),
    "data_efficiency.data_routing.random_ltd": ("runtime.data_pipeline.constants", "RANDOM_LTD_"),
    "data_efficiency.data_routing.random_ltd.random_ltd_schedule": ("runtime.data_pipeline.constants", "RANDOM_LTD_"),
    "data_efficiency.data_routing.random_ltd.layer_token_lr_schedule": (
        "runtime.data_pipeline.constants", "RANDOM_LTD_",
    ),
    "quantize_training.eigenvalue": ("runtime.constants", "EIGENVALUE_"),
}  # fmt: skip
#: Sections whose keys DeepSpeed looks up with constants, long after it has read its configuration: the module of the
#: constants, and how their names begin.
CONSTANTS: dict[str, tuple[ModuleType, str]] = {
    section: (module, prefix) for section, (path, prefix) in _CONSTANTS.items() if (module := _there(path))
}

#: The only key that DeepSpeed requires.
REQUIRED = {"train_batch_size": 1}


def read(values: dict[str, Any]) -> DeepSpeedConfig:
    """Return DeepSpeed's configuration object for these keys."""
    logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
    return DeepSpeedConfig({**REQUIRED, **copy.deepcopy(values)} if not isinstance(values, Spy) else values)


def version_note() -> str:
    """Return a note for failing assertions if another version of DeepSpeed is installed than TESTED, else ''."""
    if deepspeed.__version__ == TESTED:
        return ""
    return f" (the registry records deepspeed {TESTED}, installed is {deepspeed.__version__}: update both)"


class Spy(dict[str, Any]):
    """A JSON object that records the dotted names of the keys that are read, and the defaults of `get`."""

    def __init__(self, values: dict[str, Any], path: str = "", notes: Spy | None = None) -> None:
        self.path = path
        self.asked: set[str] = notes.asked if notes is not None else set()
        self.defaults: dict[str, Any] = notes.defaults if notes is not None else {}
        below = {k: Spy(v, f"{path}{k}.", self) if isinstance(v, dict) else v for k, v in values.items()}
        super().__init__(below)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(self.path + key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(f"{self.path}{key}")
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(self.path + key)
        self.defaults.setdefault(self.path + key, default)  # the first read determines what DeepSpeed uses
        return super().get(key, default)

    def keys(self) -> Any:
        return self

    def __copy__(self) -> Spy:
        return self


#: Of sparse attention.
MODES = [value for name, value in vars(constants).items() if re.fullmatch(r"SPARSE_\w+_MODE", name)]

TECHNIQUES = ("weight_quantization", "activation_quantization", "sparse_pruning", "row_pruning", "channel_pruning")


def spied() -> Spy:
    """What DeepSpeed asks a JSON with every section that is read key by key."""
    notes = Spy(REQUIRED)
    empty = ("activation_checkpointing", "aio", "autotuning", "checkpoint", "data_types", "flops_profiler", "nebula")
    shared: dict[str, Any] = {
        name: {"shared_parameters": {"enabled": True}, "different_groups": {}} for name in TECHNIQUES
    }
    shared["weight_quantization"]["shared_parameters"]["fp16_mixed_quantize"] = {}
    head = {"shared_parameters": {"enabled": True, "num_heads": 2}, "different_groups": {}}
    snip = {"shared_parameters": {"enabled": True, "method": "snip_momentum"}, "different_groups": {}}
    data: dict[str, Any] = {
        "data_sampling": {"curriculum_learning": {}, "dynamic_batching": {}},
        "data_routing": {"random_ltd": {}},
    }
    compression = {**shared, "head_pruning": head, "layer_reduction": {}}
    trees: list[dict[str, Any]] = [
        *({name: {}} for name in empty),
        {"checkpoint": {"writer": {}, "parallel_write": {}}},
        {"autotuning": {"model_info": {}}},
        *({name: {"enabled": False}} for name in ("expert_parallel", "torch_autocast", "amp")),
        *({name: {"enabled": False}} for name in ("curriculum_learning", "progressive_layer_drop")),
        {"optimizer": {"type": "Adam", "params": {}}, "scheduler": {"type": "WarmupLR", "params": {}}},
        {"data_efficiency": data},
        {"compression_training": compression},
        {"compression_training": {"sparse_pruning": snip}},
        *({"sparse_attention": {"mode": mode}} for mode in MODES),
    ]
    for tree in trees:
        if not refused().intersection(tree):
            read(Spy({**REQUIRED, **tree}, notes=notes))
    if elasticity := _there("elasticity.config:ElasticityConfig"):
        elasticity(Spy({}, "elasticity.", notes))
    notes.asked -= refused()
    return notes


def refused() -> set[str]:
    """The keys that DeepSpeed refuses by name because it has removed what they set."""
    top = getattr(runtime_config, "_REMOVED_TOP_LEVEL_CONFIG_KEYS", {})
    zero = getattr(runtime_config, "_REMOVED_ZERO_CONFIG_KEYS", {})
    return {*top, *(f"zero_optimization.{key}" for key in zero)}


def plain(value: Any) -> Any:
    """A default as a YAML file could have it."""
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def facts() -> dict[str, dict[str, Any]]:
    """Return section -> key -> what the installed DeepSpeed says of the key, as `tests.support.data_tables` reads it.

    `{}` is a key of which DeepSpeed says neither a type nor a default. Keys that are sections are left out.
    """
    notes = spied()
    if "curriculum_learning" not in refused():
        limits = {"min_difficulty": 1, "max_difficulty": 2, "schedule_type": "custom"}
        scheduler = _there("runtime.data_pipeline.curriculum_scheduler:CurriculumScheduler")
        scheduler(Spy(limits, "curriculum_learning.", notes))
    found = {section: _of_constants(module, prefix) for section, (module, prefix) in CONSTANTS.items()}
    for name in sorted(notes.asked):
        section, _, key = name.rpartition(".")
        found.setdefault(section, {})[key] = {"default": notes.defaults[name]} if name in notes.defaults else {}
    if layer_drop := _there("runtime.progressive_layer_drop:ProgressiveLayerDrop"):
        signature = inspect.signature(layer_drop).parameters
        found["progressive_layer_drop"] |= {key: {"default": row.default} for key, row in signature.items()}
    found |= {section: _of_model(model) for section, model in MODELS.items()}
    found |= {"optimizer.params": _of_types(of_optimizers()), "scheduler.params": _of_types(of_schedules())}
    for section in found:
        above, _, key = section.rpartition(".")
        found.get(above, {}).pop(key, None)
    return found


def _of_constants(module: ModuleType, prefix: str) -> dict[str, Any]:
    """The keys that a module's constants name. They may be no keys of the JSON but of DeepSpeed's state: `optional`."""
    named = vars(module)
    keys = {name: text for name, text in named.items() if name.startswith(prefix) and isinstance(text, str)}
    defaults = {key: {"default": named[f"{name}_DEFAULT"]} for name, key in keys.items() if f"{name}_DEFAULT" in named}
    return {key: {"optional": True, **defaults.get(key, {})} for key in keys.values()}


def _of_types(read: dict[str, dict[str, list[Any]]]) -> dict[str, Any]:
    """The keys that types of optimizers or schedules read; a default, where all agree."""
    found: dict[str, Any] = {}
    for key in dict.fromkeys(key for keys in read.values() for key in keys):
        kinds = [kind for kind, keys in read.items() if key in keys]
        defaults = [plain(default) for kind in kinds for default in read[kind][key]]
        agreed = all(read[kind][key] for kind in kinds) and all(default == defaults[0] for default in defaults)
        found[key] = {"default": defaults[0]} if agreed and defaults[0] is not inspect.Parameter.empty else {}
        if len(kinds) < len(read):
            found[key]["used_by_types"] = kinds
    return found


def _of_model(model: type[DeepSpeedConfigModel]) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, DeepSpeedConfigModel):
            continue
        row = found.setdefault(name, {"default": plain(field.get_default(call_default_factory=True))})
        if kind := _type_text(field.annotation):
            row["type"] = kind
        if field.alias:
            row["aliases"] = field.alias
        if (field.alias or "").startswith("stage3_"):  # the name in DeepSpeed's documentation
            found[field.alias] = {**found.pop(name), "aliases": name}
    return found


def accepted(model: type[DeepSpeedConfigModel]) -> set[str]:
    """Return the names of the keys of a section that refuses all others."""
    return {name for field, row in model.model_fields.items() for name in (field, row.alias) if name}


def _type_text(kind: Any) -> str:
    """Return a type as the registry spells it; empty if a YAML file cannot have its values."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        texts = [_type_text(part) for part in parts if part is not NoneType]
        return " | ".join([*texts, "None"] if NoneType in parts else texts) if all(texts) else ""
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    if kind is dict or origin is dict:
        return "dict[str, Any]"
    if origin is list and (inner := _type_text(parts[0])):
        return f"list[{inner}]"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"Literal[{', '.join(repr(member.value) for member in kind)}]"
    return kind.__name__ if kind in (bool, int, float, str) else ""

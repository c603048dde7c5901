"""Records which keys the installed DeepSpeed reads from its JSON, and which defaults it uses for missing ones."""

from __future__ import annotations

import copy
import inspect
import logging
import re
from collections.abc import Iterable
from enum import Enum
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import deepspeed
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.compression import constants as compression
from deepspeed.elasticity.config import ElasticityConfig
from deepspeed.inference.config import WeightQuantConfig
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.runtime import constants
from deepspeed.runtime.config import DeepSpeedConfig, HybridEngineConfig
from deepspeed.runtime.config_utils import DeepSpeedConfigModel
from deepspeed.runtime.data_pipeline import constants as data_pipeline
from deepspeed.runtime.data_pipeline.curriculum_scheduler import CurriculumScheduler
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.progressive_layer_drop import ProgressiveLayerDrop
from deepspeed.runtime.tensor_parallel.config import TPConfig, TPTrainingConfig
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

from tests.support.deepspeed_optimizers import of_optimizers, of_schedules

#: The version whose keys and defaults the registry records.
TESTED = "0.19.6"

MODELS: dict[str, type[DeepSpeedConfigModel]] = {
    "fp16": DeepSpeedFP16Config, "bf16": DeepSpeedBF16Config, "zero_optimization": DeepSpeedZeroConfig,
    "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
    "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.zenflow": ZenFlowConfig, "zero_optimization.leaf_module": DeepSpeedZeroLeafModuleConfig,
    "tensorboard": TensorBoardConfig, "wandb": WandbConfig, "csv_monitor": CSVConfig, "comet": CometConfig,
    "comms_logger": CommsLoggerConfig, "hybrid_engine": HybridEngineConfig, "compile": CompileConfig,
    "timers.throughput": DeepSpeedThroughputTimerConfig, "weight_quantization": WeightQuantConfig,
    "tensor_parallel": TPTrainingConfig, "tensor_parallel.tp": TPConfig,
}  # fmt: skip

#: Sections whose keys DeepSpeed looks up with constants, long after it has read its configuration: the module of the
#: constants, and how their names begin.
CONSTANTS: dict[str, tuple[ModuleType, str]] = {
    "compression_training.layer_reduction": (compression, ""),
    "data_efficiency.data_sampling.curriculum_learning": (data_pipeline, "CURRICULUM_LEARNING_"),
    "data_efficiency.data_sampling.dynamic_batching": (data_pipeline, "DYNAMIC_BATCHING_"),
    "data_efficiency.data_routing.random_ltd": (data_pipeline, "RANDOM_LTD_"),
    "data_efficiency.data_routing.random_ltd.random_ltd_schedule": (data_pipeline, "RANDOM_LTD_"),
    "data_efficiency.data_routing.random_ltd.layer_token_lr_schedule": (data_pipeline, "RANDOM_LTD_"),
    "quantize_training.eigenvalue": (constants, "EIGENVALUE_"),
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


def nested(values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return {"a": {"b": 1}} for [("a.b", 1)]."""
    tree: dict[str, Any] = {}
    for name, value in values:
        *sections, leaf = name.split(".")
        below = tree
        for section in sections:
            below = below.setdefault(section, {})
        below[leaf] = value
    return tree


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
    trees: list[dict[str, Any]] = [
        {name: {} for name in empty},
        {"checkpoint": {"writer": {}, "parallel_write": {}}, "autotuning": {"model_info": {}}},
        {"expert_parallel": {"enabled": False}, "torch_autocast": {"enabled": False}, "amp": {"enabled": False}},
        {"optimizer": {"type": "Adam", "params": {}}, "scheduler": {"type": "WarmupLR", "params": {}}},
        {"curriculum_learning": {"enabled": False}, "progressive_layer_drop": {"enabled": False}},
        {"data_efficiency": data, "compression_training": {**shared, "head_pruning": head, "layer_reduction": {}}},
        {"compression_training": {"sparse_pruning": snip}},
        *({"sparse_attention": {"mode": mode}} for mode in MODES),
    ]
    for tree in trees:
        read(Spy({**REQUIRED, **tree}, notes=notes))
    ElasticityConfig(Spy({}, "elasticity.", notes))
    return notes


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
    limits = {"min_difficulty": 1, "max_difficulty": 2, "schedule_type": "custom"}
    CurriculumScheduler(Spy(limits, "curriculum_learning.", notes))
    found = {section: _of_constants(module, prefix) for section, (module, prefix) in CONSTANTS.items()}
    for name in sorted(notes.asked):
        section, _, key = name.rpartition(".")
        found.setdefault(section, {})[key] = {"default": notes.defaults[name]} if name in notes.defaults else {}
    signature = inspect.signature(ProgressiveLayerDrop).parameters
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

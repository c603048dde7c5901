"""Accelerate's configuration: the keys that it refuses or ignores, and what contradicts a DeepSpeed JSON beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from neoxargs.base.files import Text
from neoxargs.base.problems import Edit, Problem, close_matches, is_one_edit, listed
from neoxargs.migrate.as_is import deepspeed
from neoxargs.migrate.as_is.keys import Program, Settings, conflict, entries, other_version, settings, unknown_key
from neoxargs.migrate.as_is.trainer import WORDS, fits, loaded
from neoxargs.registry import other_keys
from neoxargs.registry.other_keys import Key
from neoxargs.resolve.yaml.nodes import Entry, Scalar, format_node, is_null
from neoxargs.resolve.yaml.nodes import Mapping as Tree

#: Keys of older versions that are converted.
CONVERTED = ("fp16", "dynamo_backend")
#: Section -> what the launcher puts before its keys if they do not begin with it.
SECTIONS = {
    "deepspeed_config": "", "fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_",
    "megatron_lm_config": "", "parallelism_config": "", "mpirun_config": "", "ipex_config": "", "tp_config": "",
}  # fmt: skip
#: Key of the section `deepspeed_config` -> the key of DeepSpeed's JSON that has the same meaning.
IN_JSON = {
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}
#: Of these, those that Accelerate refuses beside a DeepSpeed JSON.
REFUSED = {*IN_JSON} - {"offload_optimizer_nvme_path"}
#: Kind of parallelism -> the section that it reads.
READ = {"DEEPSPEED": "deepspeed_config", "FSDP": "fsdp_config", "MEGATRON_LM": "megatron_lm_config"}
_MARK = re.compile(r"""(^|[{,])\s*["']?(distributed_type|deepspeed_config)["']?\s*:""", re.M)
_BESIDE = {"compute_environment", "machine_rank", "mixed_precision", "num_machines", "num_processes"}
PRECISIONS = ("no", "fp16", "bf16", "fp8")


def read(text: Text) -> Settings | None:
    """Return the file; None if it is not of Accelerate. Raises Problems if it cannot be read."""
    is_candidate = text.name.endswith((".yml", ".yaml", ".json")) and _MARK.search(text.text)
    found = settings(text) if is_candidate else None
    names = {entry.key for entry in found.tree.entries} if found else set[str]()
    return found if names & {"distributed_type", "deepspeed_config"} and names & _BESIDE else None


def judge(given: Settings, text: Text, program: Program, gpus: int | None) -> Iterator[Problem]:
    """Yield what is wrong with the configuration."""
    yield from given.twice
    tree = given.tree
    found, is_yaml = entries(tree), not text.name.endswith(".json")
    is_maker = "compute_environment" in found and "SAGEMAKER" in str(found["compute_environment"].value.to_python())
    keys, beside = other_keys.keys("accelerate", "SageMaker" if is_maker else ""), [entry.key for entry in tree.entries]
    for entry in tree.entries:
        if entry.key in CONVERTED:
            continue
        if entry.key not in keys:
            yield unknown_key(entry, program, keys, beside, "refuses")
            continue
        yield from _of_key(entry, keys[entry.key], program, is_yaml, "refuses")
        if entry.key in SECTIONS and isinstance(entry.value, Tree):
            yield from _section(entry.key, entry.value, program, is_yaml)
    if "distributed_type" not in found:
        yield conflict("Accelerate requires distributed_type", tree.place, "add it: NO, MULTI_GPU, DEEPSPEED or FSDP")
    yield from _unread(found)
    yield from _processes(found, is_yaml, gpus)
    yield from wrong_precision(found.get("mixed_precision"), is_yaml)
    if file := found.get("deepspeed_config.deepspeed_config_file"):
        yield from _with_json(found, file, text)
    else:
        yield from _for_deepspeed(found)


def remarks(given: Settings) -> dict[str, str]:
    """Return lines about a file."""
    return {}


def _section(section: str, tree: Tree, program: Program, is_yaml: bool) -> Iterator[Problem]:
    prefix = SECTIONS[section]
    keys = {**other_keys.keys("accelerate", "launcher")}
    keys |= {name.removeprefix(prefix): key for name, key in keys.items() if prefix and name.startswith(prefix)}
    for entry in tree.entries:
        if entry.key in keys:
            yield from _of_key(entry, keys[entry.key], program, is_yaml, "ignores")
        else:
            names = [name for name in keys if name.startswith(prefix)]
            yield unknown_key(entry, program, names, [each.key for each in tree.entries], "ignores", section)


def _of_key(entry: Entry, known: Key, program: Program, is_yaml: bool, does: str) -> Iterator[Problem]:
    yield from other_version(entry.key, entry.place, program, known.since, known.until, does=does)
    value, node = loaded(entry.value, is_yaml), entry.value
    shown = f"{entry.key} ({format_node(node)})"
    # The launcher does not compare the values of sections with the choices of its options.
    is_choice = value in known.choices or (does == "ignores" and str(value).lower() in map(str.lower, known.choices))
    if known.choices and isinstance(value, str) and not is_choice:
        found = [each for each in known.choices if each.lower() == value.lower() or is_one_edit(value, each)]
        found = found or close_matches(value, known.choices)
        hint = f"did you mean {listed(found)}?" if found else ""
        edits = (Edit(node.place, "replace", found[0]),) if len(found) == 1 and is_yaml else ()
        what = f"{shown} must be one of {listed(known.choices, most=30)}"
        severity: Literal["error", "warning"] = "error" if does == "refuses" else "warning"
        yield Problem(what, node.place, hint, (), severity, id="other-program-value", edits=edits)
    elif does == "refuses" and not known.choices and entry.key != "mixed_precision" and not fits(value, known):
        if known.type == "bool" and str(value).lower() in ("yes", "no", "true", "false"):
            return  # written so by `accelerate config`
        what = f"{shown} must be {listed((WORDS[kind] for kind in known.type.split('|')), most=9)}"
        yield Problem(what, node.place, "", (), "warning", id="other-program-value")


def _unread(found: Mapping[str, Entry]) -> Iterator[Problem]:
    """Yield a warning for a section that the chosen parallelism does not read."""
    kind = str(found["distributed_type"].value.to_python()).upper() if "distributed_type" in found else ""
    for of, section in READ.items():
        entry = found.get(section)
        if entry and kind and kind != of and isinstance(entry.value, Tree) and entry.value.entries:
            what = f"{section} has no effect, because distributed_type is {kind}"
            also = [found["distributed_type"].place]
            yield conflict(what, entry.place, f"remove it, or set distributed_type: {of}", also, "warning")


def _processes(found: Mapping[str, Entry], is_yaml: bool, gpus: int | None) -> Iterator[Problem]:
    """Yield a problem of the number of processes, which is that of all machines."""
    machines, total = (found.get(name) for name in ("num_machines", "num_processes"))
    count, each = (entry.value.to_python() if entry else None for entry in (total, machines))
    if total and isinstance(count, int) and isinstance(each, int) and each > 1 and count % each:
        what = f"num_processes ({count}) is the number for all machines and must be a multiple of num_machines ({each})"
        yield conflict(what, total.place, f"write {(count // each + 1) * each}", [machines.place] if machines else [])
    elif total and isinstance(count, int) and gpus and count != gpus:
        what = f"num_processes ({count}) differs from the number of GPUs ({gpus})"
        yield conflict(what, total.place, f"write {gpus}", severity="warning")
    rank = found.get("machine_rank")
    number = rank.value.to_python() if rank else None
    if rank and isinstance(number, int) and isinstance(each, int) and number >= max(each, 1):
        what = f"machine_rank ({number}) must be below num_machines ({each})"
        yield conflict(what, rank.place, "the machines count from 0", [machines.place] if machines else [], "warning")


def wrong_precision(entry: Entry | None, is_yaml: bool = True) -> Iterator[Problem]:
    """Yield the problem of a `mixed_precision` that Accelerate refuses."""
    value = loaded(entry.value, is_yaml) if entry else None
    if not entry or value is None or (isinstance(value, str) and value.lower() in PRECISIONS):
        return
    node, hint = entry.value, ""
    edits: tuple[Edit, ...] = ()
    if value is False and isinstance(node, Scalar):
        hint, edits = "write 'no', in quotes", (Edit(node.place, "replace", "'no'"),)
    what = f"mixed_precision ({format_node(node)}) must be one of {listed(PRECISIONS)}"
    what += ", as a text" if value is False else ""
    near = close_matches(str(value), PRECISIONS, alike=0.6)
    hint = hint or (f"did you mean {listed(near)}?" if near else "")
    yield Problem(what, node.place, hint, id="other-program-value", edits=edits)


def _for_deepspeed(found: Mapping[str, Entry]) -> Iterator[Problem]:
    """Yield the values that DeepSpeed refuses in the JSON that Accelerate makes of its section."""
    kind = found.get("distributed_type")
    is_read = kind is not None and str(kind.value.to_python()) == "DEEPSPEED"
    for key, name in IN_JSON.items():
        entry = found.get(f"deepspeed_config.{key}")
        if entry is None or is_null(entry.value) or entry.value.to_python() in ("auto", "none"):
            continue
        if problem := deepspeed.refused_value(name, entry):
            yield problem if is_read else problem.as_warning()


def _with_json(found: Mapping[str, Entry], file: Entry, text: Text) -> Iterator[Problem]:
    """Yield what Accelerate refuses beside a DeepSpeed JSON, and what the JSON lacks."""
    kind = found.get("distributed_type")
    severity: Literal["error", "warning"]
    severity = "error" if kind and str(kind.value.to_python()) == "DEEPSPEED" else "warning"
    name = str(file.value.to_python())
    theirs = deepspeed.named(name, text)
    names = {key: f"deepspeed_config.{key}" for key in REFUSED} | {"mixed_precision": "mixed_precision"}
    for key, dotted in names.items():
        if dotted not in found or (key == "mixed_precision" and is_null(found[dotted].value)):
            continue
        entry = found[dotted]
        what = f"{key} beside deepspeed_config_file ({name}) is refused: the JSON has to set it"
        other = (theirs or {}).get(IN_JSON.get(key, ""))
        if other and other.value.to_python() not in ("auto", entry.value.to_python()):
            what += f", and there it is {format_node(other.value)}"
        hint = f"remove it here, and set {IN_JSON.get(key, 'bf16.enabled or fp16.enabled')} in the JSON"
        also = [file.place, *([other.place] if other else [])]
        yield conflict(what, entry.place, hint, also, severity)
    if theirs is not None and "zero_optimization" not in theirs:
        what = f"{name} has no section zero_optimization, which Accelerate requires"
        yield conflict(what, file.place, "add it, for example with stage 0", severity=severity)

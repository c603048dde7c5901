"""The YAML of Hugging Face's Accelerate, whose section `deepspeed_config` has DeepSpeed's settings by other names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from neoxargs.base.files import Text
from neoxargs.base.problems import Place, Problem, Problems, sentence
from neoxargs.migrate.as_is.accelerate import IN_JSON, wrong_precision
from neoxargs.migrate.deepspeed.convert import convert_version
from neoxargs.migrate.deepspeed.lenient_json import Block
from neoxargs.migrate.deepspeed.versions import chosen, versions
from neoxargs.migrate.result import Result
from neoxargs.migrate.source import Options, Source
from neoxargs.resolve.yaml.nodes import Entry, Mapping, Node, Scalar
from neoxargs.resolve.yaml.read import File
from neoxargs.resolve.yaml.write import Setting

SECTION = "deepspeed_config"
PARALLELISM = "parallelism_config"
#: Ranks that divide a sequence: of torch's ring, for FSDP, and of DeepSpeed.
CONTEXT = tuple(f"{PARALLELISM}.{PARALLELISM}_{kind}_size" for kind in ("cp", "sp"))
#: Key of Accelerate -> parameter.
PARAMETERS = {
    "main_process_ip": "master_addr",
    "main_process_port": "master_port",
    "num_machines": "num_nodes",
    **{f"{SECTION}.{key}": name for key, name in IN_JSON.items()},
    f"{SECTION}.deepspeed_hostfile": "hostfile",
    f"{SECTION}.deepspeed_inclusion_filter": "include",
    f"{SECTION}.deepspeed_exclusion_filter": "exclude",
    **dict.fromkeys(CONTEXT, "context_parallel_size"),
}
#: Value of `mixed_precision` -> the section that Accelerate turns on; `no` is fp32.
PRECISIONS = {"bf16": "bf16.enabled", "fp16": "fp16.enabled", "fp8": "bf16.enabled"}
#: What Accelerate sets in DeepSpeed's JSON for absent keys (`DeepSpeedPlugin`), where it is not what deepy does.
DEFAULTS = {
    "zero_optimization.stage": Setting(2, behind="Accelerate's default"),
    "gradient_clipping": Setting(
        1.0, behind="Accelerate's default, or the --max_grad_norm of Hugging Face's Trainer (default 1.0)"
    ),
}
FILE = "deepspeed_config_file"
KIND = "distributed_type"
PRECISION = "mixed_precision"


class Accelerate(Source):
    """The configuration of `accelerate launch`, which is refused unless it is for DeepSpeed."""

    name = "accelerate"
    describes = "an Accelerate YAML"
    options = frozenset({"--deepspeed"})

    def recognises(self, text: Text) -> bool:
        if not text.name.endswith((".yml", ".yaml")) or not re.search(f"^({SECTION}|{KIND}):", text.text, re.M):
            return False
        try:
            tree = _tree(text)
            return isinstance(_value(tree, SECTION), Mapping) or _other_kind(tree) is not None
        except Problems:  # NeoX reports why the file cannot be read
            return False

    def converts(self, texts: Sequence[Text], options: Options) -> Result:
        (text,) = texts
        tree = _tree(text)
        entries = list(_entries(tree))
        section = _value(tree, SECTION)
        if not (isinstance(section, Mapping) and section.entries) and (kind := _other_kind(tree)):
            what = f"{KIND} is {kind.text}, expected DEEPSPEED: deepy trains only with DeepSpeed"
            hint = "configure Accelerate for DeepSpeed and migrate that file; ZeRO stage 3 shards a model as FSDP does"
            if any(key in CONTEXT for key, _ in entries):
                hint += ", and context_parallel_size divides sequences"
            raise Problems([Problem(what, kind.place, hint, id="migrate-accelerate-without-deepspeed")])
        precision = next((entry for key, entry in entries if key == PRECISION), None)
        read = [_setting(key, entry, tree) for key, entry in entries]
        settings = [setting for setting in read if setting]
        left_out = [(key, entry) for (key, entry), setting in zip(entries, read, strict=True) if not setting]
        without_fp8 = [*_without_fp8(precision)]
        to_do = [f"TODO: {sentence(problem)}." for problem in without_fp8]
        block = Block(_nested(settings, tree.place), warnings=[*without_fp8, *_warnings(left_out)], to_do=to_do)
        is_whole = all(key != f"{SECTION}.{FILE}" for key, _ in entries)
        offered = versions([block])
        if wrong := [*wrong_precision(precision)]:
            raise Problems([*(problem for version in offered for problem in version.draft.problems), *wrong])
        version, defaults = chosen(offered, None, text.name), DEFAULTS if is_whole else {}
        return convert_version(version, text.name, options.deepspeed, is_whole=is_whole, defaults=defaults)


@lru_cache(maxsize=1)  # read when the file is recognised and when it is converted
def _tree(text: Text) -> Mapping:
    return File(*text).mapping()


def _value(tree: Mapping, key: str) -> Node | None:
    return next((entry.value for entry in tree.entries if entry.key == key), None)


def _other_kind(tree: Mapping) -> Scalar | None:
    """Return the kind of parallelism if it is not DeepSpeed's."""
    kind = _value(tree, KIND)
    return kind if isinstance(kind, Scalar) and kind.text.upper() != "DEEPSPEED" else None


def _entries(tree: Mapping, path: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield every setting with its dotted key, except empty ones."""
    for entry in tree.entries:
        if entry.key in (SECTION, PARALLELISM) and isinstance(entry.value, Mapping):
            yield from _entries(entry.value, f"{entry.key}.")
            continue
        key, value = path + entry.key, entry.value.to_python()
        if value not in (None, {}, []) and not (key in CONTEXT and value == 1):
            yield key, entry


def _setting(key: str, entry: Entry, tree: Mapping) -> tuple[str, Entry] | None:
    """Return the parameter of a setting and an entry with its value; None if there is none."""
    if key in PARAMETERS:
        return PARAMETERS[key], entry
    if not isinstance(entry.value, Scalar):
        return None
    if key == PRECISION and (value := entry.value.text.lower()) in PRECISIONS:
        return PRECISIONS[value], entry._replace(value=entry.value._replace(value=True, text="true"))
    machines = _value(tree, "num_machines")
    count = machines.value if isinstance(machines, Scalar) else 1
    total = entry.value.value
    # Accelerate counts the processes of all machines, deepy the GPUs of one.
    if key == "num_processes" and isinstance(count, int) and isinstance(total, int) and count and total % count == 0:
        each = total // count
        return "num_gpus", entry._replace(value=entry.value._replace(value=each, text=str(each)))
    return None


def _nested(settings: Sequence[tuple[str, Entry]], place: Place) -> Mapping:
    """Return a tree with the sections of dotted names."""
    tree = Mapping([], place)
    for name, entry in settings:
        *sections, last = name.split(".")
        inner = tree
        for section in sections:
            found = _value(inner, section)
            if not isinstance(found, Mapping):
                found = Mapping([], entry.place)
                inner.entries.append(Entry(section, found, entry.place))
            inner = found
        inner.entries.append(entry._replace(key=last))
    return tree


def _without_fp8(precision: Entry | None) -> Iterator[Problem]:
    if precision and str(precision.value.to_python()).lower() == "fp8":
        what = f"{PRECISION} (fp8) becomes bf16, which Accelerate uses beside fp8: deepy has no fp8"
        hint = f"compare the losses, or train with {PRECISION}: bf16 in Accelerate too"
        yield Problem(what, precision.value.place, hint, severity="warning", id="migrate-key-left-out")


def _warnings(left_out: Sequence[tuple[str, Entry]]) -> Iterator[Problem]:
    """Yield a warning for a DeepSpeed JSON that the file names, and one for all settings without an equivalent."""
    for key, entry in left_out:
        if key == f"{SECTION}.{FILE}" and isinstance(entry.value, Scalar):
            what = f"{key} names {entry.value.text}, which is not converted together with this file"
            hint = f"migrate {entry.value.text} too, and pass both new files to every deepy command"
            yield Problem(what, entry.place, hint, severity="warning", id="migrate-key-left-out")
    rest = [key for key, _ in left_out if not key.endswith(f".{FILE}") and key != PRECISION]
    if rest:
        what = f"these settings have no equivalent in deepy and are left out: {', '.join(rest)}"
        yield Problem(what, left_out[0][1].place, severity="warning", id="migrate-key-left-out")

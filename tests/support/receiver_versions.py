"""Differences between published versions of DeepSpeed and megatron-core, from their source distributions.

`python -m tests.support.receiver_versions FOLDER` downloads what FOLDER lacks (4 MB for each version), reads each
version and writes neoxargs/registry/receiver_versions.json. DeepSpeed's keys are what `deepspeed_spy` records in a
process of its own, in which the unpacked distribution comes before the installed package; megatron-core's arguments are
the fields of its dataclasses, read from the source without importing it. `from_facts` makes the table of both.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from neoxargs.registry import REGISTRY
from tests.support.paths import ROOT

PATH = ROOT / "neoxargs/registry/receiver_versions.json"
#: Distribution -> the versions that are compared.
VERSIONS = {
    "deepspeed": [*(f"0.18.{n}" for n in range(10)), *(f"0.19.{n}" for n in range(9))],
    "megatron-core": [
        "0.16.0",
        "0.16.1",
        "0.17.0",
        "0.17.1",
        "0.18.0",
        "0.18.1",
        "0.18.2",
        "0.19.0",
        "0.19.1",
        "0.19.2",
    ],
}
#: Files of megatron-core with the dataclasses that its training script has arguments for.
DATACLASSES = (
    "model_parallel_config.py", "transformer/transformer_config.py", "optimizer/optimizer_config.py",
    "distributed/distributed_data_parallel_config.py", "datasets/blended_megatron_dataset_config.py",
    "datasets/gpt_dataset.py",
)  # fmt: skip

#: Name -> `default`, as far as it is known.
Facts = dict[str, dict[str, Any]]


def deepspeed_facts(source: Path) -> tuple[Facts, list[str]]:
    """Return the keys of an unpacked DeepSpeed, and those that it refuses."""
    path = os.pathsep.join([str(source), str(ROOT)])
    command = [sys.executable, "-m", "tests.support.receiver_versions", "--spy"]
    answer = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True, text=True)
    facts, refused = json.loads(answer.stdout.splitlines()[-1])
    return facts, refused


def installed_facts() -> tuple[Facts, list[str]]:
    """Return what `deepspeed_facts` does, of the DeepSpeed that this process imports."""
    from tests.support import deepspeed_spy

    found: Facts = {}
    for section, keys in deepspeed_spy.facts().items():
        for key, row in keys.items():
            name = f"{section}.{key}" if section else key
            if "optional" not in row or REGISTRY.find(name):
                found[name] = {"default": row["default"]} if "default" in row else {}
    return json.loads(json.dumps(found, default=repr)), sorted(deepspeed_spy.refused())


def megatron_facts(source: Path) -> Facts:
    """Return the fields of megatron-core's dataclasses with the defaults that are literals."""
    found: Facts = {}
    for file in DATACLASSES:
        for node in ast.walk(ast.parse((source / "megatron/core" / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list):
                found |= dict(_fields(node))
    return found


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            try:
                yield each.target.id, {"default": ast.literal_eval(each.value)} if each.value else {}
            except ValueError:
                yield each.target.id, {}


def from_facts(facts: Mapping[str, Facts], refused: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the differences between versions, which are in their order."""
    listed = list(facts)
    facts = {version: _without(facts[version], refused.get(version, ())) for version in listed}
    events: dict[str, dict[str, list[str]]] = {"added": {}, "removed": {}, "refused": {}}
    defaults: dict[str, list[list[Any]]] = {}
    for before, after in pairwise(listed):
        old, new = facts[before], facts[after]
        events["added"][after] = _shortened(new.keys() - old.keys(), old.keys())
        events["removed"][after] = _shortened(old.keys() - new.keys(), new.keys())
        events["refused"][after] = sorted(set(refused.get(after, ())) - set(refused.get(before, ())))
        for name in sorted(old.keys() & new.keys()):
            was, becomes = old[name], new[name]
            if "default" in was and "default" in becomes and was["default"] != becomes["default"]:
                defaults.setdefault(name, [[listed[0], was["default"]]]).append([after, becomes["default"]])
    names = {event: {version: rows for version, rows in by.items() if rows} for event, by in events.items()}
    return {"versions": listed, **names, "defaults": defaults}


def _without(facts: Facts, sections: Sequence[str]) -> Facts:
    """Return the keys that are neither refused nor in a section that is."""
    return {name: row for name, row in facts.items() if not any(f"{name}.".startswith(f"{s}.") for s in sections)}


def _shortened(names: set[str], others: Any) -> list[str]:
    """Return names with a section in place of its keys where no other key is in that section."""
    kept = set()
    for name in names:
        parts = name.split(".")
        sections = [".".join(parts[:end]) for end in range(1, len(parts))]
        whole = (s for s in sections if not any(other == s or other.startswith(s + ".") for other in others))
        kept.add(next(whole, name))
    return sorted(kept)


def as_text(tables: Mapping[str, Any]) -> str:
    """Return the file: a line for each version or key."""
    blocks = []
    for receiver, table in tables.items():
        rows = [f'  "versions": {json.dumps(table["versions"])}']
        for event in ("added", "removed", "refused", "defaults"):
            lines = ",\n".join(f"   {json.dumps(key)}: {json.dumps(row)}" for key, row in table[event].items())
            rows.append(f'  "{event}": {{\n{lines}}}' if lines else f'  "{event}": {{}}')
        blocks.append(f' "{receiver}": {{\n' + ",\n".join(rows) + "}")
    return "{\n" + ",\n".join(blocks) + "}\n"


def unpacked(distribution: str, version: str, folder: Path) -> Path:
    """Return the folder of a source distribution, which is downloaded if it is not there."""
    name = f"{distribution.replace('-', '_')}-{version}"
    if not (folder / name).is_dir():
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
        build = ["--no-build-isolation"] if distribution == "deepspeed" else []
        subprocess.run(
            [*pip, *build, "--ignore-requires-python", f"{distribution}=={version}", "-d", folder], check=True
        )
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / name


def main(folder: Path) -> None:
    """Write the table."""
    sources = [unpacked("deepspeed", version, folder) for version in VERSIONS["deepspeed"]]
    with ThreadPoolExecutor(4) as pool:
        answers = dict(zip(VERSIONS["deepspeed"], pool.map(deepspeed_facts, sources), strict=True))
    facts = {version: found for version, (found, _) in answers.items()}
    refused = {version: names for version, (_, names) in answers.items()}
    arguments = {
        version: megatron_facts(unpacked("megatron-core", version, folder)) for version in VERSIONS["megatron-core"]
    }
    tables = {"deepspeed": from_facts(facts, refused), "megatron-core": from_facts(arguments, {})}
    PATH.write_text(as_text(tables), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--spy":
        print(json.dumps(installed_facts()))
    else:
        main(Path(sys.argv[1]))

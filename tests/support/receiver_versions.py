"""Differences between published versions of DeepSpeed, and the torch that they and megatron-core require.

`python -m tests.support.receiver_versions FOLDER` downloads what FOLDER lacks (4 MB for each version), reads each
version and writes neoxargs/registry/receiver_versions.json. DeepSpeed's keys are what `deepspeed_spy` records in a
process of its own, in which the unpacked distribution comes before the installed package; `from_facts` makes their
table. The oldest torch is the one that the metadata of a distribution states.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
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
#: Version of DeepSpeed -> the oldest torch with which it was imported, where its metadata names one that is too old:
#: an annotation of 0.19.6 stops torch 2.6.
IMPORTED = {"0.19.6": "2.7.0"}

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


def torch_minimums(metadata: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the versions from which a distribution requires a newer torch, each with that torch.

    metadata: version -> its metadata, in the order of versions.
    """
    changes: list[tuple[str, str]] = []
    for version, text in metadata.items():
        found = re.search(r"^Requires-Dist: torch>=([\d.]+)$", text, re.MULTILINE)
        minimum = IMPORTED.get(version) or (found[1] if found else "")
        if minimum != (changes[-1][1] if changes else ""):
            changes.append((version, minimum))
    return changes


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


def as_text(table: Mapping[str, Any]) -> str:
    """Return the file: a line for each version, key or package."""
    rows = [f' "versions": {json.dumps(table["versions"])}']
    for part in ("added", "removed", "refused", "defaults", "torch"):
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in table[part].items())
        rows.append(f' "{part}": {{\n{lines}}}')
    return "{\n" + ",\n".join(rows) + "}\n"


def unpacked(version: str, folder: Path) -> Path:
    """Return the folder of a source distribution of DeepSpeed, which is downloaded if it is not there."""
    name = f"deepspeed-{version}"
    if not (folder / name).is_dir():
        _download(f"deepspeed=={version}", folder, "--no-binary", ":all:", "--no-build-isolation")
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / name


def megatron_metadata(version: str, folder: Path) -> str:
    """Return the metadata of megatron-core, from a wheel, because building its source needs torch."""
    name = f"megatron_core-{version}"
    if not (found := list(folder.glob(f"{name}-*.whl"))):
        _download(f"megatron-core=={version}", folder, "--only-binary", ":all:", "--python-version", "3.12")
        found = list(folder.glob(f"{name}-*.whl"))
    with zipfile.ZipFile(found[0]) as wheel:
        return wheel.read(f"{name}.dist-info/METADATA").decode()


def _download(what: str, folder: Path, *options: str) -> None:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    subprocess.run([*pip, *options, what, "-d", folder], check=True)


def main(folder: Path) -> None:
    """Write the table."""
    sources = {version: unpacked(version, folder) for version in VERSIONS["deepspeed"]}
    with ThreadPoolExecutor(4) as pool:
        answers = dict(zip(sources, pool.map(deepspeed_facts, sources.values()), strict=True))
    facts = {version: found for version, (found, _) in answers.items()}
    refused = {version: names for version, (_, names) in answers.items()}
    metadata = {
        "deepspeed": {version: (source / "PKG-INFO").read_text("utf-8") for version, source in sources.items()},
        "megatron-core": {version: megatron_metadata(version, folder) for version in VERSIONS["megatron-core"]},
    }
    torch = {package: torch_minimums(of_versions) for package, of_versions in metadata.items()}
    PATH.write_text(as_text({**from_facts(facts, refused), "torch": torch}), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--spy":
        print(json.dumps(installed_facts()))
    else:
        main(Path(sys.argv[1]))

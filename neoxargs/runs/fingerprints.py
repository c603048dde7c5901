"""What a run depends on besides its configuration: code, packages, hardware, and the content of its files."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neoxargs.config.config import Config
from neoxargs.files.token_files.sources import named_token_files
from neoxargs.hosts.devices import installed_devices
from neoxargs.hosts.packages import installed_versions
from neoxargs.registry import plugins

#: The packages that compute something for a run, by their names with `_` for `-`.
PACKAGES = ("torch", "deepspeed", "megatron_core", "numpy", "triton", "tokenizers", "sentencepiece", "tiktoken")
PACKAGE = Path(__file__).resolve().parent.parent
#: Larger files are not read completely: only SAMPLES blocks of SAMPLE bytes, the first and the last among them.
WHOLE_BYTES, SAMPLES, SAMPLE = 1 << 24, 16, 1 << 20
#: The same limit for index files, which say where each document is.
WHOLE_INDEX_BYTES = 1 << 28

Section = dict[str, Any]


def environment(config: Config, script: str, rates: str = "") -> dict[str, Section]:
    """Return everything that a run of this script depends on, as it is here and now.

    rates: the file with the rates of this machine that the plan uses; empty without one.
    """
    learned = {"rates": {"path": rates, **_of_file(Path(rates))}} if os.path.isfile(rates) else {}
    found = {"code": code(script), "packages": packages(), "hardware": hardware() | learned}
    return {**found, "files": files(config)}


def code(script: str) -> Section:
    """Return digests of the package and of the script, the commit of the current folder, and the plugins."""
    found = {"neoxargs": package_digest(), "commit": git_hash(), "plugins": list(plugins.LOADED)}
    return {**found, "script": _of_file(Path(script))["sha256"] if os.path.isfile(script) else None}


def package_digest() -> str:
    """Return the digest of all modules and data files of this package."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in (".py", ".json", ".cpp", ".h") and path.is_file():
            digest.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def packages() -> Section:
    """Return the versions of Python and of the packages that are installed."""
    versions = installed_versions()
    present = {name: versions[name] for name in PACKAGES if name in versions}
    return {"python": platform.python_version(), **present}


def hardware() -> Section:
    """Return the processors of this machine, without starting a program."""
    gpus = [text.strip() for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
            for text in re.findall(r"Model:(.*)", _text(path))]  # fmt: skip
    driver = re.search(r"Kernel Module\s+([\d.]+)", _text(Path("/proc/driver/nvidia/version")))
    processor = re.search(r"model name\s*:(.*)", _text(Path("/proc/cpuinfo")))
    return {
        "machine": platform.machine(), "processor": processor[1].strip() if processor else None,
        "cores": os.cpu_count(), "gpus": gpus or installed_devices(), "driver": driver[1] if driver else None,
    }  # fmt: skip


def files(config: Config) -> Section:
    """Return parameter -> path, size and digest of each file that it names and that exists."""
    found: Section = {}
    for name, path in _named_files(config):
        if os.path.isfile(path):
            found.setdefault(name, []).append({"path": path, **_of_file(Path(path))})
    return found


def _named_files(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the files of tokens and of the tokenizer. Raw text is represented by the tokens made from it."""
    for name, prefix in named_token_files(config.get):
        yield from ((name, prefix + suffix) for suffix in (".idx", ".bin"))
    for name in ("vocab_file", "merge_file"):
        if path := config.get(name):
            yield name, path


def _of_file(path: Path) -> Section:
    """Return size and digest of a file; `sampled` says that only a part of it was read."""
    size = path.stat().st_size
    whole = size <= (WHOLE_INDEX_BYTES if path.suffix == ".idx" else WHOLE_BYTES)
    with path.open("rb", buffering=0) as file:
        if whole:
            return {"bytes": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
        digest = hashlib.sha256()
        for number in range(SAMPLES):
            file.seek((size - SAMPLE) * number // (SAMPLES - 1))
            digest.update(file.read(SAMPLE))
    return {"bytes": size, "sha256": digest.hexdigest(), "sampled": True}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def git_hash() -> str | None:
    """Return the commit of the working directory; None outside a git repository."""
    import subprocess

    try:
        # GPT-NeoX's own command. The limit is for repositories on slow file systems.
        command = ["git", "describe", "--always"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None

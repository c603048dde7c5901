"""What happens once, in sight, before the ranks start: values are noted down, text is tokenised, C++ compiled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from neoxargs.launch import ops
from neoxargs.launch.hosts import Resources
from neoxargs.launch.ops import Say
from neoxargs.registry import ABSENT
from neoxargs.resolve.config import Config, Source, Value

#: The file in `run_dir` that says what a run was, and where each value came from.
RECORD = "config.json"


def prepare(config: Config, resources: Resources, environ: Mapping[str, str], say: Say) -> int:
    """Everything the ranks need; returns an exit code, 0 when they can start. Raises Problems."""
    write_record(config)
    failed = tokenise(config, environ)
    if not failed and not resources.remote:
        ops.prepare(ops.needed(config, resources.device), environ, say)
    return failed


def with_script(config: Config, script: str) -> Config:
    """`user_script` as GPT-NeoX's launcher sets it."""
    return amended(config, "user_script", script, Source("environment", text="the command line"))


def with_text(config: Config) -> Config:
    """Where `text_path` is given, `data_path` names the token file that is made of it."""
    if not config.data.text_path or config.data.data_path:
        return config
    source = Source("derived", text="tokenised from text_path", inputs=("text_path", "run_dir"))
    return amended(config, "data_path", str(Path(config.logging.run_dir, "data", "text")), source)


def amended(config: Config, name: str, value: object, source: Source) -> Config:
    """The same configuration with one more value."""
    return Config({**config.values, name: Value(value, source)}, config.sections, config.warnings, config.dialect)


def tokenise(config: Config, environ: Mapping[str, str]) -> int:
    """Make the token file of `text_path` unless it is there; returns the exit code."""
    words = data_command(config)
    return subprocess.run(words, env=dict(environ), check=False).returncode if words else 0


def data_command(config: Config) -> list[str]:
    """What tokenises `text_path`; empty without one."""
    texts, tokenizer = config.data.text_path, config.tokenizer
    if not texts:
        return []
    options = {"tokenizer-type": tokenizer.tokenizer_type, "vocab-file": tokenizer.vocab_file,
               "merge-file": tokenizer.merge_file, "output-prefix": config.data.data_path}  # fmt: skip
    words = [sys.executable, "-m", "neoxargs.train.data.build", "--if-missing"]
    words += [f"--{option}={value}" for option, value in options.items() if value]
    return [*words, "--text-path", *([texts] if isinstance(texts, str) else texts)]


def write_record(config: Config) -> Path:
    """Note every value down with its source, one line each."""
    lines = [
        f" {json.dumps(parameter.name)}: {json.dumps({'value': value.value, 'source': str(value.source)})}"
        for parameter, value in config.items()
        if value.value is not None and value.value is not ABSENT
    ]
    path = Path(config.logging.run_dir, RECORD)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return path

"""What happens once, in sight, before the ranks start: values are noted down, text is tokenised, C++ compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from neoxargs.launch import compiled_ops
from neoxargs.launch.cluster.hosts import Resources
from neoxargs.launch.compiled_ops import Say
from neoxargs.launch.preflight.hardware import ops_to_compile
from neoxargs.registry import ABSENT
from neoxargs.resolve import Text
from neoxargs.resolve.config import Config
from neoxargs.resolve.value import Source, Value

#: The configuration files travel on the command line, where an argument may have 128 KiB in all.
MAX_FILES_BYTES = 32_000
LAUNCHED = Source("derived", text="looked up when the run was launched")
#: The file in `run_dir` that says what a run was, and where each value came from.
RECORD_FILE = "config.json"


def compile_ops(config: Config, resources: Resources, environ: Mapping[str, str], say: Say) -> None:
    """What every rank would compile at once otherwise; other machines do it themselves."""
    if not resources.remote:
        compiled_ops.compile_missing(ops_to_compile(config, resources.device), environ, say)


def with_launch(config: Config, script: str, texts: Sequence[Text]) -> Config:
    """What GPT-NeoX's launcher adds: the script, the texts of the configuration files, the commit."""
    additions: dict[str, object] = {"user_script": script, "git_hash": git_hash()}
    files = {os.path.basename(text.name): text.text for text in texts}
    if len(json.dumps(files)) < MAX_FILES_BYTES:  # as it travels: every letter that is not ASCII takes six
        additions["config_files"] = files
    for name, value in additions.items():
        if value and not config.is_set(name):
            config = with_value(config, name, value, LAUNCHED)
    return config


def git_hash() -> str | None:
    """The commit of the tree that the command runs in; None outside of one."""
    try:
        command = ["git", "describe", "--always"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def with_text(config: Config) -> Config:
    """Where `text_path` is given, `data_path` names the token file that is made of it."""
    if not config.data.text_path or config.data.data_path:
        return config
    source = Source("derived", text="tokenised from text_path", inputs=("text_path", "run_dir"))
    return with_value(config, "data_path", str(Path(config.logging.run_dir, "data", "text")), source)


def with_value(config: Config, name: str, value: object, source: Source) -> Config:
    """The same configuration with one more value."""
    return Config({**config.values, name: Value(value, source)}, config.sections, config.warnings, config.dialect)


def tokenise(config: Config, environ: Mapping[str, str]) -> int:
    """Make the token file of `text_path` unless it is there; returns the exit code."""
    command = data_command(config)
    if not command:
        return 0
    process = subprocess.Popen(command, env=dict(environ))
    try:
        return process.wait()
    except BaseException:  # Ctrl-C, SIGTERM: let it take its own processes and half-written files along
        process.terminate()
        process.wait()
        raise


def data_command(config: Config) -> list[str]:
    """What tokenises `text_path`; empty without one."""
    texts, tokenizer = config.data.text_path, config.tokenizer
    if not texts:
        return []
    options = {"tokenizer-type": tokenizer.tokenizer_type, "vocab-file": tokenizer.vocab_file,
               "merge-file": tokenizer.merge_file, "output-prefix": config.data.data_path}  # fmt: skip
    command = [sys.executable, "-m", "neoxargs.train.data.build", "--if-missing"]
    command += [f"--{option}={value}" for option, value in options.items() if value]
    return [*command, "--text-path", *([texts] if isinstance(texts, str) else texts)]


def write_record(config: Config) -> Path:
    """Note every value down with its source, one line each."""
    lines = [
        f" {json.dumps(parameter.name)}: {json.dumps({'value': value.value, 'source': str(value.source)})}"
        for parameter, value in config.items()
        if value.value is not None and value.value is not ABSENT
    ]
    path = Path(config.logging.run_dir, RECORD_FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return path

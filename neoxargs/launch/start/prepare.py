"""Steps that run once before the ranks start: record the configuration, tokenise text, load tasks, compile C++ ops."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from neoxargs.base.files import Text
from neoxargs.base.problems import Problem, Problems, report, without_secrets
from neoxargs.base.programs import DATA, LM_EVAL_TASKS, READERS, Script
from neoxargs.checks.checkpoint.model import loaded_checkpoint, other_data
from neoxargs.checks.machine.hardware import ops_to_compile
from neoxargs.config.config import Config
from neoxargs.config.value import Source
from neoxargs.files.run_record import write_record
from neoxargs.files.token_files.index import digest
from neoxargs.hosts.hosts import Resources
from neoxargs.processes import interrupts
from neoxargs.runs.run_spec import RunSpec

#: What a disk that is full, limited, write-protected or broken answers. Permissions are checked before the start.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
#: Larger texts of configuration files are not sent to the ranks, because an argument may have at most 128 KiB.
MAX_FILES_BYTES = 32_000
#: Prints a line about the run.
Say = Callable[[str], None]
LAUNCHED = Source("derived", text="set by deepy when the run was launched")


def prepare(script: Script, spec: RunSpec, environ: Mapping[str, str], say: Say) -> int:
    """Prepare a run, and return the exit code of the step that failed, or 0."""
    from neoxargs.launch.start.restarts import continues_job  # a dry run does without these imports
    from neoxargs.runs import lockfile

    config, resources = spec.config, spec.resources
    # Not of a requeued job that goes on: the record says how its first start was launched.
    records = script.program not in READERS and not continues_job(config, os.environ)
    if records:
        report(lockfile.replaced_record(config, script.path))
        write_record(config)
    if script.program != "generate" and (failed := _tokenise(script, config, environ)):
        return failed
    if script.program == "train" and (failed := load_tasks(config, resources, environ, say)):
        return failed
    if records:
        rates = spec.planned.rates if spec.planned else ""
        lockfile.write_lock(config, script.path, rates)  # after the token files exist, whose digests it contains
    compile_ops(config, resources, environ, say)
    return 0


@contextmanager
def disk_errors_are_problems(config: Config) -> Iterator[None]:
    """Raise Problems in place of the error of a disk that cannot be written to."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        folder = config.logging.run_dir
        what = f"run_dir ({folder}): {error.filename or 'a file in it'} cannot be written: {error.strerror}"
        hint = "free up space and inodes on this disk, or set run_dir to another folder"
        problem = Problem(what, config.place("run_dir"), hint, id="folder-not-writable", about=("run_dir",))
        raise Problems([problem]) from error


def _tokenise(script: Script, config: Config, environ: Mapping[str, str]) -> int:
    """Tokenise text; warn if the text has changed, because the checks before this saw the old tokens."""
    prefix = str(config.get("data_path"))
    before = digest(prefix)
    failed = tokenise(config, environ)
    if script.program == "train" and not failed and digest(prefix) != before:
        report(list(other_data(config, loaded_checkpoint(config))))
    return failed


def compile_ops(config: Config, resources: Resources, environ: Mapping[str, str], say: Say) -> None:
    """Compile the ops that every rank of this machine would compile otherwise; remote ranks compile their own."""
    if not resources.remote:
        from neoxargs.launch.start.compile_ops import compile_missing

        compile_missing(ops_to_compile(config, resources.device), environ, say)


def with_launch(config: Config, script: str, texts: Sequence[Text], commit: str | None = None) -> Config:
    """Add the values that GPT-NeoX's launcher adds: the script, the texts of the configuration files, the commit."""
    additions: dict[str, object] = {"user_script": script, "git_hash": commit}
    files = {os.path.basename(text.name): without_secrets(text.text) for text in texts}
    if len(json.dumps(files)) < MAX_FILES_BYTES:  # the encoded size: JSON writes a non-ASCII character as 6 bytes
        additions["config_files"] = files  # GPT-NeoX's checkpoints contain them
    added = {name: value for name, value in additions.items() if value and not config.is_set(name)}
    return config.with_values(added, LAUNCHED)


def tokenise(config: Config, environ: Mapping[str, str]) -> int:
    """Create the token file of `text_path` if it does not exist; returns the exit code."""
    command = data_command(config)
    return _run(command, environ) if command else 0


def load_tasks(config: Config, resources: Resources, environ: Mapping[str, str], say: Say) -> int:
    """Load the tasks that training runs, with their data; returns the exit code, 1 if there is no such task."""
    options = config.generation
    if not options.eval_tasks or not options.eval_tasks_interval or resources.remote:
        return 0
    say(f"loading the tasks {', '.join(options.eval_tasks)}")
    folder = [f"--folder={options.eval_tasks_path}"] if options.eval_tasks_path else []
    command = [sys.executable, "-m", LM_EVAL_TASKS, *folder, "--", *options.eval_tasks]
    return _run(command, environ)


def _run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a step in a process of its own and return its exit code."""
    import subprocess

    process = None
    try:
        with interrupts.ignored_by_children():  # the step is ended by the SIGTERM below, and only deepy reports Ctrl-C
            # It inherits the locks of the run, by which the next run knows that this one has not ended.
            process = subprocess.Popen(command, env=dict(environ), close_fds=False)
        return process.wait()
    except BaseException:  # Ctrl-C, SIGTERM: let it end its own processes and remove incomplete files
        if process:
            process.terminate()
            process.wait()
        raise


def data_command(config: Config) -> list[str]:
    """Return the command that tokenises `text_path`; empty if it is not set."""
    texts, tokenizer = config.data.text_path, config.tokenizer
    if not texts:
        return []
    options = {"tokenizer-type": tokenizer.tokenizer_type, "vocab-file": tokenizer.vocab_file,
               "merge-file": tokenizer.merge_file, "output-prefix": config.data.data_path}  # fmt: skip
    command = [sys.executable, "-m", DATA, "--if-missing"]
    command += [f"--{option}={value}" for option, value in options.items() if value]
    # A name that begins with `-` would be an option.
    names = [f"./{text}" if text.startswith("-") else text for text in ([texts] if isinstance(texts, str) else texts)]
    return [*command, "--text-path", *names]

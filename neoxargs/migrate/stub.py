"""The program that takes the place of another one while `deepy migrate --run` runs a script; not imported by a stub.

A launcher's arguments are appended to a file instead of being obeyed. Python runs, unless it would start a training.
Arguments: the file of records, how to treat the program (a row of KINDS), the program's name, and its arguments.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys

#: How a program is treated -> the programs. Of `wrap`, a shell among the arguments runs instead.
KINDS = {
    "python": "python python2 python3",
    "record": "accelerate apptainer bsub deepspeed docker pdsh podman qsub sbatch singularity ssh sudo torchrun",
    "wrap": "aprun jsrun mpiexec mpirun srun",
    "nothing": """
        aws azcopy conda curl gcloud git gsutil kubectl pip pip3 pkill reboot rm rmdir rsync scancel scp shutdown sleep
        tensorboard wandb wget""",
}
_SHELLS = ("bash", "sh", "dash", "zsh")
_TRAINING = re.compile(
    r"(^|[_/.-])(pre_?)?(train|finetune)|(^|/)deepy\.py$|^(torch\.distributed|deepspeed|accelerate)\b"
)
_FLAG = re.compile(r"--(num[-_]layers|hidden[-_]size|(tensor|pipeline)[-_]model[-_]parallel[-_]size)(=|$)")


def main(records: str, kind: str, name: str, *words: str) -> int:
    """Record the program or run it; return the exit code."""
    if kind == "python" and not _starts_training(words):
        if words[:2] == ("-m", "pip"):
            return 0
        folders = os.environ["PATH"].split(os.pathsep)
        path = os.pathsep.join(folder for folder in folders if folder != os.path.dirname(records))
        python = shutil.which(name, path=path) or sys.executable
        os.execv(python, [python, *words])
    if kind == "nothing":
        return 0
    shell = next((i for i, word in enumerate(words) if os.path.basename(word) in _SHELLS), None)
    if kind == "wrap" and shell is not None:
        os.execvp("bash", ["bash", *words[shell + 1 :]])
    paths = [word.partition("=")[2] or word for word in words]
    texts = {path: text for path in paths if (text := _json_text(path)) is not None}
    with open(records, "a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(json.dumps({"words": [name, *words], "json": texts}) + "\n")
    return 0


def _starts_training(words: tuple[str, ...]) -> bool:
    """Return whether these arguments of Python start a training program, alone or by a launcher."""
    for number, word in enumerate(words):
        if word in ("-c", "-"):
            return False
        if word == "-m" or not word.startswith("-"):
            program = words[number + 1] if word == "-m" and number + 1 < len(words) else word
            return bool(_TRAINING.search(program)) or any(map(_FLAG.match, words))
    return False


def _json_text(path: str) -> str | None:
    """Return the text of a JSON file, which the script may change after it; None for anything else."""
    if not path.endswith(".json"):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

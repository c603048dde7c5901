"""Flags of torchrun and DeepSpeed's launcher, which start Megatron-LM."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from neoxargs.base.problems import close_matches
from neoxargs.migrate.megatron.open_values import leave_placeholder
from neoxargs.migrate.megatron.reading import Option, Reading, options_of
from neoxargs.migrate.shell.values import Word
from neoxargs.registry import normal

#: Flags of torchrun and DeepSpeed's launcher, and their parameters.
LAUNCHER_FLAGS = {
    "nproc_per_node": "num_gpus", "nnodes": "num_nodes", "master_addr": "master_addr", "master_port": "master_port",
    "num_gpus": "num_gpus", "num_nodes": "num_nodes", "hostfile": "hostfile", "include": "include",
    "exclude": "exclude",
}  # fmt: skip
#: What a program does that is not for training a GPT -> words of its name or folder.
OTHER_PROGRAMS = {
    "trains a BERT": "bert ict realm biencoder",
    "trains a T5": "t5",
    "trains a prefix language model": "prefix prefixlm",
    "trains a retrieval model": "retro retriever",
    "trains a Mamba or a hybrid model": "mamba mamba2 hybrid",
    "trains a model of images or of several modalities": """
        vision vit dino inpaint inpainting classify vlm vl llava multimodal mimo clip image video audio speech""",
    "trains or evaluates a model for a task": """
        tasks task t0 race glue mnli qqp zeroshot orqa nq msdp main eval evaluate evaluation validate mmlu lm_eval
        evaluator""",
    "generates text": "generate generation inference server sampling sample samples serve",
    "converts, compresses or examines files": """
        convert converter conversion hf2mcore mcore2hf hf2megatron export merge split quantize quantization prune
        pruning report analyze analyzer extract preprocess create tools checkpoint""",
    "trains from preferences": "rlhf ppo grpo dpo reward rl",
    "trains a model for chat, with a loss on the answers": "sft chatglm glm130b",
}
#: Modules that are launchers, as in `python -m torch.distributed.run`.
_LAUNCHERS = ("torch.distributed", "deepspeed", "accelerate")


def read_launcher(reading: Reading, words: Sequence[Word]) -> list[Option]:
    """Read the flags before the program that is launched, and return them."""
    _warn_of_misspelt_flags(reading, words)
    options = [
        option._replace(values=option.values[:1])  # further words are the launched program, as in `--nnodes 2 python`
        for option in options_of(words).values()
        if normal(option.name) in LAUNCHER_FLAGS
    ]
    for option in options:
        _read_flag(reading, option)
    return options


def _warn_of_misspelt_flags(reading: Reading, words: Sequence[Word]) -> None:
    """Warn about flags of torchrun or DeepSpeed's launcher that are similar to one that is read."""
    starts = [
        i
        for i, word in enumerate(words)
        if os.path.basename(word.text) in ("torchrun", "deepspeed") or word.text.startswith("torch.distributed")
    ]
    for option in options_of(words[max(starts, default=len(words)) :]).values():
        similar = close_matches(normal(option.name), LAUNCHER_FLAGS, most=1, alike=0.85)
        if similar and similar[0] != normal(option.name):
            what = f"{option} is not a launcher flag and is left out"
            reading.warn("migrate-unknown-flag", what, option.place, f"did you mean --{similar[0]}?")


def index_of_program(texts: Sequence[str]) -> int:
    """Return the index of the program that the launcher starts, `NAME.py` or the module after `-m`; -1 if none."""
    modules = [i + 1 for i, text in enumerate(texts[:-1]) if text == "-m" and not texts[i + 1].startswith(_LAUNCHERS)]
    first = next((i for i, text in enumerate(texts) if text.endswith(".py") or i in modules), -1)
    # a program can start another one, as in `python bind_cores.py pretrain_gpt.py`
    while first >= 0 and texts[first + 1 : first + 2] and texts[first + 1].endswith(".py"):
        first += 1
    return first


def is_of_gpt(program: str) -> bool:
    """Return whether a program is one of those that pretrain a GPT in Megatron-LM and its forks."""
    name = os.path.basename(program) if program.endswith(".py") else program.rpartition(".")[2]
    return re.match(r"pretrain_gpt(2|_\w+)?(\.py)?$", name) is not None


def kind_of_program(program: str) -> str:
    """Return what a program does instead of training a GPT, as a clause; empty if its name does not say that.

    The folders above count too, as in `tasks/main.py` and `examples/multimodal/train.py`.
    """
    words = set(re.split(r"[^a-z0-9]+", program.lower()))
    return next((kind for kind, names in OTHER_PROGRAMS.items() if not words.isdisjoint(names.split())), "")


def note_hostfile(reading: Reading) -> None:
    """Add a comment that several machines need a hostfile, without which `deepy check` refuses them."""
    nodes, address = (reading.settings.get(name) for name in ("num_nodes", "master_addr"))
    if nodes is None or nodes.value < 2 or {"hostfile", "launcher"} & {*reading.settings, *reading.to_write}:
        return
    reading.to_do.append(f"TODO: set hostfile to a file that lists the {nodes.value} machines (num_nodes).")
    if address and address.value in ("localhost", "127.0.0.1"):
        del reading.settings["master_addr"]  # the other machines could not reach it


def _read_flag(reading: Reading, option: Option) -> None:
    name = LAUNCHER_FLAGS[normal(option.name)]
    if option.is_placeholder:
        leave_placeholder(reading, option, [name])
    elif option.is_known:
        reading.set_from(option, name)

"""Python packages that a run imports only after its text is tokenised and all ranks have started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from neoxargs.problems import Place, Problem, listed
from neoxargs.resolve.config import Config
from neoxargs.resolve.rules.synonyms import yaml_form

#: Parameters that, turned on, make rank 0 import a package: train.py's trackers and DeepSpeed's own.
PACKAGES = {
    "use_wandb": "wandb", "wandb.enabled": "wandb", "use_comet": "comet_ml", "comet.enabled": "comet_ml",
    "tensorboard_dir": "tensorboard", "tensorboard.enabled": "tensorboard",
}  # fmt: skip
#: tokenizer_type -> the package that every rank imports for it.
TOKENIZERS = {"SPMTokenizer": "sentencepiece", "TiktokenTokenizer": "tiktoken"}

#: distributed_backend -> what to do where the installed torch does not have it.
BACKENDS = {
    "nccl": "write distributed_backend: gloo, or install a torch that is built for CUDA",
    "gloo": "write distributed_backend: nccl",
    "mpi": "leave distributed_backend out; deepspeed_mpi: true starts the ranks with mpirun and needs no such torch",
}


def can_train_here() -> bool:
    """Is torch installed? Where it is not, configurations are only checked, for other machines."""
    return not is_missing("torch")


def missing_trainer() -> Iterator[Problem]:
    """What every rank of our programs imports first; `pip install neoxargs` alone checks and plans without it."""
    absent = [package for package in ("torch", "deepspeed", "megatron") if is_missing(package)]
    if absent:
        what = f"training needs {listed(absent, 'and')}, which {'is' if len(absent) == 1 else 'are'} not installed here"
        yield Problem(what, hint="pip install 'neoxargs[train]'", id="trainer-missing")


def missing_packages(config: Config) -> Iterator[Problem]:
    """Those of trackers and tokenizers."""
    asked = {name: package for name, package in PACKAGES.items() if config.get(name)}
    if package := TOKENIZERS.get(config.tokenizer.tokenizer_type or ""):
        asked["tokenizer_type"] = package
    for name, package in asked.items():
        if is_missing(package):
            yield _missing(package, name, config)


def _missing(package: str, name: str, config: Config) -> Problem:
    what = f"{name} ({yaml_form(config.get(name))}) needs the Python package {package}, which is not installed"
    off = f"write {name}: false" if name in ("use_wandb", "use_comet") else f"leave {name} out"
    hint = f"pip install {package}, or {off}" if name in PACKAGES else f"pip install {package}"
    return Problem(what, config.place(name), hint, id="package-missing", about=(name,))


def missing_harness(config: Config) -> Iterator[Problem]:
    """What eval.py's tasks need; not imported here, because that takes seconds."""
    if config.generation.eval_tasks and is_missing("lm_eval"):
        yield harness_missing("No module named 'lm_eval'", config.place("eval_tasks"))


def harness_missing(why: str, where: Place | None = None) -> Problem:
    """why: what its import says."""
    what = f"eval_tasks needs the Python package lm_eval, which cannot be imported: {why}"
    hint = "pip install -c constraints.txt lm_eval"
    return Problem(what, where, hint, id="package-missing", about=("eval_tasks",))


def missing_backend(config: Config) -> Iterator[Problem]:
    """pip's torch knows nothing of MPI."""
    name = "distributed_backend"
    if config.training.distributed_backend == "mpi" and _torch_lacks("ProcessGroupMPI"):
        what = f"{name} (mpi): the installed torch is built without it"
        yield Problem(what, config.place(name), BACKENDS["mpi"], id="backend-missing", about=(name,))


def is_missing(package: str) -> bool:
    """Is it not installed? A mere folder of that name, such as wandb's own for its runs, is no package."""
    from importlib.util import find_spec

    found = find_spec(package)
    return found is None or (found.origin is None and package != "megatron")  # which is a namespace of several


def _torch_lacks(name: str) -> bool:
    """Does no such class stand in torch's library? It takes seconds to load; False where there is none to look into."""
    from importlib.util import find_spec
    from mmap import ACCESS_READ, mmap

    torch = find_spec("torch")
    library = Path(torch.origin).parent / "lib" / "libtorch_python.so" if torch and torch.origin else None
    if library is None or not library.is_file():
        return False
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(name.encode()) < 0

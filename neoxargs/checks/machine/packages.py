"""Checks for Python packages that a run imports only after tokenising its text and starting all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from neoxargs.base.problems import Problem, listed
from neoxargs.base.shipped import installation
from neoxargs.config.config import Config
from neoxargs.hosts.packages import BACKENDS, harness_missing, installed_versions, is_missing
from neoxargs.resolve.rules.synonyms import yaml_form

#: Parameter -> the package that rank 0 imports if it is set: the trackers of train.py and of DeepSpeed.
PACKAGES = {
    "use_wandb": "wandb", "wandb.enabled": "wandb", "use_comet": "comet_ml", "comet.enabled": "comet_ml",
    "tensorboard_dir": "tensorboard", "tensorboard.enabled": "tensorboard",
}  # fmt: skip
#: tokenizer_type -> the package that every rank imports for it.
TOKENIZERS = {"SPMTokenizer": "sentencepiece", "TiktokenTokenizer": "tiktoken"}

#: Package of PyPI -> the versions it was tested in, by their first two numbers; constraints.txt has the full numbers.
TESTED = {"deepspeed": "0.19", "megatron-core": "0.16", "torch": "2.13"}


def can_train_here() -> bool:
    """Return whether torch is installed; without it, configurations are only checked for other machines."""
    return not is_missing("torch")


def missing_trainer() -> Iterator[Problem]:
    """The packages that every rank imports; an installation without extras has only what `check` and `plan` need."""
    yield from missing_for("training", ("torch", "deepspeed", "megatron"))


def missing_for(what_needs: str, packages: Sequence[str]) -> Iterator[Problem]:
    """The packages of the extra `train` without which something cannot start."""
    absent = [package for package in packages if is_missing(package)]
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        what = f"{what_needs} needs {listed(absent, 'and')}, which {verb} not installed on this machine"
        yield Problem(what, hint=f"run {installation('train')}", id="trainer-missing")


def untested_packages(assumed: Mapping[str, str]) -> Iterator[Problem]:
    """Installed or assumed versions that the trainer was not tested with; it relies on internals of DeepSpeed."""
    versions = {**installed_versions(), **assumed}
    for package, tested in TESTED.items():
        version = versions.get(package.replace("-", "_"))
        if version and ".".join(version.split(".")[:2]) != tested:
            how = "assumed" if package in assumed else "installed"
            what = f"{package} {version} is {how}, but train.py has been tested only with {package} {tested}"
            hint = f"run pip install '{package}=={tested}.*'"
            yield Problem(what, hint=hint, severity="warning", id="package-untested")


def missing_packages(config: Config) -> Iterator[Problem]:
    """The packages of trackers and tokenizers."""
    used = (name for name in (*PACKAGES, "tokenizer_type") if config.knows(name) and config.get(name))
    for name in used:
        package = PACKAGES.get(name) or TOKENIZERS.get(config.get(name))
        if package and is_missing(package):
            what = f"{name} ({yaml_form(config.get(name))}) needs the Python package {package}, which is not installed"
            off = f"set {name}: false" if name in ("use_wandb", "use_comet") else f"remove {name}"
            hint = f"run pip install {package}" + (f", or {off}" if name in PACKAGES else "")
            yield Problem(what, config.place(name), hint, id="package-missing", about=(name,))


def missing_harness(config: Config, training: bool = False) -> Iterator[Problem]:
    """The package lm_eval, which tasks need; only looked up, because importing it takes seconds.

    training: whether tasks only run if `eval_tasks_interval` is set.
    """
    wanted = config.generation.eval_tasks and (config.generation.eval_tasks_interval or not training)
    if wanted and is_missing("lm_eval"):
        yield harness_missing("No module named 'lm_eval'", config.place("eval_tasks"))


def missing_backend(config: Config) -> Iterator[Problem]:
    """The MPI backend, which torch's packages on PyPI are built without."""
    name = "distributed_backend"
    if config.training.distributed_backend == "mpi" and _torch_lacks("ProcessGroupMPI"):
        what = f"{name} (mpi): the installed torch is built without MPI"
        yield Problem(what, config.place(name), BACKENDS["mpi"], id="backend-missing", about=(name,))


def _torch_lacks(name: str) -> bool:
    """Return whether torch's library does not contain a class name; False if the library is not found.

    The file is searched for the name, because importing torch takes seconds.
    """
    from importlib.util import find_spec
    from mmap import ACCESS_READ, mmap

    torch = find_spec("torch")
    library = Path(torch.origin).parent / "lib" / "libtorch_python.so" if torch and torch.origin else None
    if library is None or not library.is_file():
        return False
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(name.encode()) < 0

"""Checks of the kernels of attention: a named one that cannot compute a layer, and what `auto` stores on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from neoxargs.base.problems import Problem
from neoxargs.base.text import format_bytes
from neoxargs.facts.attention_kernels import Place, Stored, stored_pairs, unusable
from neoxargs.hosts.packages import installed_versions
from neoxargs.registry.receivers import numbers
from neoxargs.runs.run_spec import RunSpec

NAME = "attention_backend"
#: Bytes on one rank of which nobody needs to know.
FEW = 2**30
#: What can be written instead, by what stores the pairs of tokens.
INSTEAD = {
    "attention_softmax_in_fp32": "remove {0}: fused kernels, which store no scores, compute the softmax in fp32 too",
    "apply_query_key_layer_scaling": "remove {0}: fused kernels store no scores, and compute them in fp32",
    "attention_dropout": "set {0}: 0",
    "pos_emb": "set {0}: rotary",
}


def unusable_kernels(spec: RunSpec) -> Iterator[Problem]:
    """Yield an error if the kernel that is named cannot compute what a layer asks on the run's device, nor on a GPU.

    A ring names one on GPUs only.
    """
    if not _on_cpus(spec) or [*unusable(spec.config, Place("cpu"))]:
        yield from unusable(spec.config, _gpu(spec))


def unusable_here(spec: RunSpec) -> Iterator[Problem]:
    """Yield an error if the kernel that is named needs a GPU, and the ranks run on CPUs."""
    if _on_cpus(spec) and not [*unusable(spec.config, _gpu(spec))]:
        yield from unusable(spec.config, Place("cpu"))


def _on_cpus(spec: RunSpec) -> bool:
    return spec.resources.device == "cpu" and not spec.resources.remote


def stored_scores(spec: RunSpec) -> Iterator[Problem]:
    """Yield a warning of scores or masks of all pairs of tokens in GPU memory that the configuration does not name."""
    config = spec.config
    if spec.resources.device != "cuda" or config.attention.attention_backend != "auto":
        return
    for stored in stored_pairs(config, _gpu(spec)):
        if stored.total >= FEW:
            yield _warning(stored, spec)


def _warning(stored: Stored, spec: RunSpec) -> Problem:
    choice, config = stored.choice, spec.config
    name, place = choice.decided_by or NAME, None
    if name in INSTEAD:
        place = config.place(name)
    each, held = format_bytes(stored.layer), stored.layers
    memory = f"{each} per layer and micro batch" + (f", {format_bytes(stored.total)} in {held} layers" * (held > 1))
    what = f"attention stores the {stored.tensors} of all pairs of tokens, {memory} on each rank ({choice.why})"
    instead = f"{INSTEAD[name].format(name)}, or write" if name in INSTEAD else "write"
    hint = f"{instead} {NAME}: {choice.kernel} to keep it without this warning"
    about = (NAME, name) if name != NAME else (NAME,)
    return Problem(what, place, hint, severity="warning", id="attention-stores-pairs", about=about)


def _gpu(spec: RunSpec) -> Place:
    """Return a GPU from the A100 on, with the version of torch that will be used, as far as it is known."""
    torch = {**installed_versions(), **spec.assumed}.get("torch")
    return Place(torch=numbers(torch)[:2]) if torch else Place()

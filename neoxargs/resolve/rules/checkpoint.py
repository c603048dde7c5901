"""Saving checkpoints: `save` needs an interval, and the interval must fit its scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neoxargs.base.problems import listed
from neoxargs.facts.data import shares
from neoxargs.resolve.rules.rule import Findings, check, refuse, warn


@check
def save_needs_checkpoint_factor(
    save: str | None, checkpoint_factor: float | None, extra_save_iters: Sequence[int] | None
) -> Findings:
    """save alone only names a folder. Without checkpoint_factor or extra_save_iters, no checkpoint is written during
    training, and a run that is interrupted or fails loses all progress.

        save: checkpoints
    """
    if save and checkpoint_factor is None and not extra_save_iters:
        yield refuse(
            f"save ({save}) needs checkpoint_factor or extra_save_iters, which determine when checkpoints are saved",
            "for example, set checkpoint_factor to 1000 to save a checkpoint every 1000 iterations",
            about=["checkpoint_factor", "extra_save_iters"],  # that of `save` itself is certain
        )


@check
def folders_are_full_paths(
    save: str | None, load: str | None, log_dir: str | None, tensorboard_dir: str | None
) -> Findings:
    """Paths in a configuration are taken literally, as in GPT-NeoX: neither `~` nor `$NAME` is expanded. Checkpoints
    would be written to a folder named `~` in the current directory.

        save: ~/checkpoints
        checkpoint_factor: 10
    """
    folders = {"save": save, "load": load, "log_dir": log_dir, "tensorboard_dir": tensorboard_dir}
    for name, folder in folders.items():
        if folder and (folder.split("/")[0] == "~" or "$" in folder):
            unexpanded = "$" if "$" in folder else "~"
            what = f"{name} ({folder}) contains {unexpanded}, which is not expanded in configurations"
            yield refuse(what, f'write the full path; on the command line, use --set {name}="$HOME/..."', about=[name])
            return


@check
def extra_save_iters_are_reached(
    save: str | None, extra_save_iters: Sequence[int] | None, train_iters: int
) -> Findings:
    """The run ends after train_iters iterations: at the iterations of extra_save_iters that are higher, no checkpoint
    is saved.

        save: checkpoints
        extra_save_iters: [3, 400]
        train_iters: 10
    """
    beyond = [str(iteration) for iteration in extra_save_iters or () if iteration > train_iters]
    if save and beyond:
        what = f"extra_save_iters contains {listed(beyond, 'and')}, but the run ends at iteration {train_iters}"
        yield warn(what, "use iterations up to train_iters", about=["extra_save_iters", "train_iters"])


@check
def rollback_finds_checkpoints(
    on_spike: str,
    save: str | None,
    no_save_optim: bool,
    spike_rollback_checkpoints: int,
    keep_last_n_checkpoints: int | None,
    checkpoint__load_universal: bool,
) -> Findings:
    """on_spike: rollback continues from an earlier checkpoint of the run, so checkpoints must be saved, with optimizer
    states, and enough of them kept. DeepSpeed cannot load them where it is told to load universal ones.

        on_spike: rollback
    """
    if on_spike != "rollback":
        return
    if not save:
        yield refuse("on_spike (rollback) needs checkpoints to go back to", "set save", about=["on_spike", "save"])
    elif no_save_optim or checkpoint__load_universal:
        name = "no_save_optim" if no_save_optim else "checkpoint.load_universal"
        yield refuse(f"on_spike (rollback) cannot be combined with {name}", f"remove {name}", ["on_spike", name])
    elif keep_last_n_checkpoints and keep_last_n_checkpoints < spike_rollback_checkpoints:
        yield refuse(
            f"spike_rollback_checkpoints ({spike_rollback_checkpoints}) is more than are kept: "
            f"keep_last_n_checkpoints ({keep_last_n_checkpoints})",
            f"set keep_last_n_checkpoints to at least {spike_rollback_checkpoints}",
            about=["spike_rollback_checkpoints", "keep_last_n_checkpoints"],
        )


@check
def keep_best_checkpoints_has_an_effect(
    save: str | None,
    keep_best_checkpoints: int | None,
    keep_last_n_checkpoints: int | None,
    checkpoint_factor: float | None,
    checkpoint_scale: str,
    eval_interval: int,
    eval_iters: int,
) -> Findings:
    """keep_best_checkpoints compares the validation losses of checkpoints. Without keep_last_n_checkpoints all of them
    are kept, and one that is saved in an iteration without an evaluation is never among the best.

        save: checkpoints
        checkpoint_factor: 15
        eval_interval: 10
        eval_iters: 1
        keep_best_checkpoints: 2
        keep_last_n_checkpoints: 2
    """
    if not save or not keep_best_checkpoints:
        return
    if not keep_last_n_checkpoints:
        what = "keep_best_checkpoints has no effect: without keep_last_n_checkpoints, all checkpoints are kept"
        yield warn(what, "set keep_last_n_checkpoints as well", ["keep_best_checkpoints", "keep_last_n_checkpoints"])
    elif not eval_interval or not eval_iters:
        what = "keep_best_checkpoints has no effect: no checkpoint has a validation loss before the end of the run"
        yield warn(what, "set eval_interval and eval_iters", ["keep_best_checkpoints", "eval_interval", "eval_iters"])
    elif checkpoint_scale == "linear" and checkpoint_factor and checkpoint_factor % eval_interval:
        what = "keep_best_checkpoints: most checkpoints have no validation loss, because checkpoint_factor "
        what += f"({checkpoint_factor:g}) is no multiple of eval_interval ({eval_interval})"
        about = ["keep_best_checkpoints", "checkpoint_factor", "eval_interval"]
        yield warn(what, "set checkpoint_factor to a multiple of eval_interval", about)


@check
def keep_best_checkpoints_has_validation_data(
    save: str | None,
    keep_best_checkpoints: int | None,
    do_valid: bool | None,
    data_path: object,
    text_path: object,
    split: str | Sequence[float],
    validation: Mapping[str, Any] | None,
) -> Findings:
    """keep_best_checkpoints compares the validation losses of checkpoints. A run without validation data has none, and
    the checkpoints that were meant to be kept are removed.

        data_path: my_text_document
        split: 95, 0, 5
        save: checkpoints
        checkpoint_factor: 10
        eval_interval: 10
        eval_iters: 1
        keep_best_checkpoints: 2
        keep_last_n_checkpoints: 2
    """
    if not save or not keep_best_checkpoints:
        return
    if do_valid is False:
        what = "keep_best_checkpoints has no effect: without do_valid, no checkpoint has a validation loss"
        yield warn(what, "remove do_valid", ["keep_best_checkpoints", "do_valid"])
    elif (data_path or text_path) and not validation and not shares(split)[1]:
        what = f"keep_best_checkpoints has no effect: split ({split}) leaves no validation data"
        yield warn(what, "give validation a share of split, or set validation", ["keep_best_checkpoints", "split"])


@check
def extra_save_iters_are_kept(
    save: str | None,
    extra_save_iters: Sequence[int] | None,
    keep_last_n_checkpoints: int | None,
    checkpoint_factor: float | None,
    checkpoint_scale: str,
    train_iters: int,
) -> Findings:
    """keep_last_n_checkpoints removes all older checkpoints, including those of extra_save_iters, which are usually
    saved to be kept: the checkpoint is gone when it is needed
    (https://github.com/andrewargatkiny/dense-attention/pull/10).

        save: checkpoints
        checkpoint_factor: 10
        extra_save_iters: [15]
        keep_last_n_checkpoints: 2
    """
    if not save or not keep_last_n_checkpoints or checkpoint_scale != "linear":
        return
    factor = int(checkpoint_factor or train_iters)
    extra = {each for each in extra_save_iters or () if each < train_iters}

    def saved_after(iteration: int) -> int:
        """Return how many checkpoints are saved later, the one at the end of the run included."""
        at_intervals = range((iteration // factor + 1) * factor, train_iters, factor)
        return len(at_intervals) + sum(each > iteration and each % factor > 0 for each in extra) + 1

    if removed := [str(each) for each in sorted(extra) if saved_after(each) >= keep_last_n_checkpoints]:
        yield warn(
            f"keep_last_n_checkpoints ({keep_last_n_checkpoints}) removes the checkpoint{'s' * (len(removed) > 1)} of "
            f"extra_save_iters ({listed(removed, 'and')}) before the run ends",
            "remove keep_last_n_checkpoints, or copy these checkpoints elsewhere in time",
            about=["extra_save_iters", "keep_last_n_checkpoints"],
        )


@check
def save_names_a_folder(save: str | None) -> Findings:
    """An empty save, such as that of a script's variable that is not set, is no folder: no checkpoints are written, and
    the trained model is lost.

        save: ""
    """
    if save == "":
        yield warn("save is empty, so no checkpoints will be written", "set save to a folder, or remove it")


@check
def checkpoint_factor_fits_scale(checkpoint_factor: float | None, checkpoint_scale: str) -> Findings:
    """On a linear scale, checkpoint_factor is a number of iterations; on a log scale, the saved iterations are powers
    of checkpoint_factor. A fraction of an iteration is never reached, and the powers of a number up to 1 never grow:
    checkpoints would be missing, or the list of iterations would never end.

        save: checkpoints
        checkpoint_factor: 2.5
    """
    if checkpoint_factor is None:
        return
    if checkpoint_scale == "linear" and checkpoint_factor != int(checkpoint_factor):
        what = f"checkpoint_factor ({checkpoint_factor}) must be a whole number if checkpoint_scale is linear"
        yield refuse(what, "use a whole number, or set checkpoint_scale to log", about=["checkpoint_factor"])
    elif checkpoint_scale == "log" and checkpoint_factor <= 1:
        what = f"checkpoint_factor ({checkpoint_factor}) must be greater than 1 if checkpoint_scale is log"
        yield refuse(what, "for example, set checkpoint_factor to 2 to save at iterations 1, 2, 4, 8, ...")


@check
def background_save_needs_states_in_memory(
    save_in_background: bool,
    zero_optimization__offload_optimizer__device: str,
    zero_optimization__offload_param__device: str,
) -> Findings:
    """States that are offloaded to NVMe are stored in files, and DeepSpeed copies these files into the checkpoint while
    training waits. A checkpoint that is written in the background would contain states of a later step.

        save_in_background: true
        zero_optimization: {stage: 3, offload_optimizer: {device: nvme, nvme_path: /local}}
    """
    devices = {
        "zero_optimization.offload_optimizer.device": zero_optimization__offload_optimizer__device,
        "zero_optimization.offload_param.device": zero_optimization__offload_param__device,
    }
    name = next((name for name, device in devices.items() if device == "nvme"), None)
    if save_in_background and name is not None:
        what = f"save_in_background (true) cannot be combined with {name} (nvme)"
        yield refuse(what, f"remove save_in_background, or set {name} to cpu", about=["save_in_background", name])


@check
def background_save_needs_torchs_writer(
    save_in_background: bool, nebula__enabled: bool, datastates_ckpt: object, checkpoint__writer__decoupled: bool
) -> Findings:
    """With Nebula or DataStates, another program decides when to write the checkpoints. DeepSpeed's decoupled writer
    has a process of its own. Two programs that write one checkpoint in the background would not wait for each other.

        save_in_background: true
        nebula: {enabled: true}
    """
    others = {
        "nebula.enabled": nebula__enabled,
        "datastates_ckpt": bool(datastates_ckpt),
        "checkpoint.writer.decoupled": checkpoint__writer__decoupled,
    }
    name = next((name for name, on in others.items() if on), None)
    if save_in_background and name is not None:
        what = f"save_in_background (true) cannot be combined with {name} (true)"
        yield refuse(what, f"remove save_in_background or {name}", about=["save_in_background", name])

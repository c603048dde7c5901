"""The run: its length, evaluation and processes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Bound, Count, Natural, Positive, Seed


class Training(Group, origin="NeoX", effect="run"):
    """Length of the run, evaluation, seeds and process setup."""

    train_iters: Count = param(derived=True, origin="Meg", megatron="train-iters")
    """Number of optimizer steps of the whole run, including those before a resume. Required unless `train_epochs` or
    `train_samples` is given."""

    train_samples: Count | None = param(None, ours=True, origin="Meg", megatron="train-samples")
    """Number of training samples, in place of `train_iters`, which is then the largest number of steps that read no
    more. With `rampup_batch_size`, the schedule of the learning rate then counts samples too, as in Megatron-LM."""

    train_epochs: Count | None = param(None)
    """Number of passes over the training data, in place of `train_iters`, which is then computed from the number of
    samples: the run has the largest number of steps in which no sample is read more than this many times. Every pass
    has a different order. Needs token files."""

    seq_length_schedule: list[dict[str, Any]] | None = param(None, ours=True)
    """The length of the sequences as a list of phases `{until, length}`: each is longer than the one before it and
    divides `seq_length`, the length of the last phase, which has no `until`. `until` counts from the beginning of the
    run: iterations (`2000`), `20B tokens` or `5M samples`. Samples keep `seq_length` tokens and are cut into sequences
    of the current length, so that a step has as many tokens in every phase and none is left out. Evaluation uses
    `seq_length`."""

    eval_interval: Natural = param(1000, origin="Meg", megatron="eval-interval", receiver_default=None)
    """Iterations between two evaluations on the validation data. 0 turns evaluation during training off."""

    eval_iters: Natural = param(100, origin="Meg", megatron="eval-iters")
    """Number of batches per evaluation; the reported loss is the mean over them. 0 skips evaluation."""

    exit_interval: Count | None = param(None, origin="Meg", megatron="exit-interval")
    """Saves and stops at the first iteration that is a multiple of this number, for jobs with a time limit."""

    loss_average: Literal["micro_batches", "tokens"] = param("micro_batches", ours=True)
    """How losses are averaged if micro batches differ in their number of trained tokens, as with label files:
    `micro_batches` takes the mean over the trained tokens of each micro batch, and then the mean over micro batches and
    replicas, as GPT-NeoX does; `tokens` takes the mean over all trained tokens of the batch, as transformers does, so
    that each of them has the same weight. An evaluation reports the mean over its batches."""

    on_divergence: Literal["stop", "skip"] = param("stop", ours=True)
    """Reaction to a step whose loss, or any gradient, is infinite or NaN: `stop` ends the run without saving, and names
    the rank and weight that had it first; `skip` leaves weights, optimizer state and learning rate unchanged on all
    ranks, and takes the next samples. In fp16, steps whose gradients overflow are always skipped, and each of them
    lowers the dynamic loss scale."""

    max_skipped_steps: Count = param(10, ours=True)
    """Number of steps skipped in a row after which the run stops: with `on_divergence: skip`, and in fp16 with a fixed
    `fp16.loss_scale`. Steps with a finite loss after which a dynamic loss scale is lowered do not count."""

    on_spike: Literal["ignore", "warn", "skip", "skip_samples", "rollback"] = param("ignore", ours=True)
    """Reaction to a spike: a step whose loss, or whose gradient norm in the embedding, in a layer or in the output, is
    far above the median of the steps before it. `warn` reports it, with the weight and the rank that had the largest
    gradient, and the samples of the step; `skip` also leaves weights, optimizer state and learning rate unchanged in
    this step, for which the host waits for the gradients of every step; `skip_samples` then leaves out the next
    `spike_skip_samples` samples of the data too; `rollback` goes back to an earlier checkpoint, and leaves out all
    samples from there to the spike and `spike_skip_samples` more. With these three, of which fp16 supports only
    `rollback`, a loss or gradient that is infinite or NaN counts as a spike."""

    spike_threshold: Positive = param(10.0, ours=True)
    """How many deviations above the median a loss or gradient norm is a spike. A deviation is the median absolute
    deviation divided by 0.6745, which is the standard deviation of normally distributed values."""

    spike_window: Annotated[int, Bound(ge=4)] = param(128, ours=True)
    """Number of the last steps whose loss and gradient norms are the usual ones. No finite value is a spike before half
    of them."""

    spike_skip_samples: Natural = param(0, ours=True)
    """Number of samples that are left out after a spike, with `on_spike: skip_samples` and `rollback`. They do not
    count as consumed: the schedule and the number of steps stay."""

    spike_rollback_checkpoints: Count = param(1, ours=True)
    """How many checkpoints `on_spike: rollback` goes back: 1 is the last one before the spike. If there are fewer, the
    oldest one."""

    max_spikes: Count = param(10, ours=True)
    """Number of spikes of the whole run to which `on_spike` reacts, other than by `warn`; at the next one, the run
    stops without saving."""

    char_level_ppl: bool = param(False, effect="log")
    """Also reports the perplexity per character in evaluations during training, so that runs with different tokenizers
    can be compared. eval.py always reports perplexity per word and per byte."""

    seed: Seed = param(1234, origin="Meg", megatron="seed")
    """Seed of all random numbers: initial weights, order of samples, dropout."""

    deterministic: bool = param(False, ours=True, megatron="deterministic-mode")
    """Makes repeated runs on the same type and number of GPUs bit-identical: kernels that add numbers in the order in
    which threads finish are replaced by slower ones, and an operation without such a replacement ends the run. On CPUs,
    runs are bit-identical without this setting."""

    dialect: str | None = param(None, ours=True, to=(), effect="config")
    """Date of the GPT-NeoX version whose defaults and meanings apply: `neox-2021` (28 February 2021), `neox-2026` (the
    newest), or a date such as `2023-03-09`. If not set, a file with a key that only later versions have is read as
    `neox-2026`, and any other file as `neox-2021`."""

    user_script: str | None = param(None, effect="log")
    """The script that every rank runs. Taken from the command line."""

    config_files: dict[str, str] | None = param(None, effect="log")
    """The text of the configuration files, by name, so that checkpoints and logs can contain it. Filled in when a run
    is launched."""

    iteration: Natural | None = param(None)
    """The iteration of the checkpoint in `load` to continue from or to read; by default the newest one. The run then
    overwrites or removes checkpoints of later iterations in the same folder."""

    do_train: bool | None = param(None)
    """Whether there is anything to train on. Set by the training loop from `train_iters` and the data."""

    do_valid: bool | None = param(None)
    """Whether there is validation data and `eval_iters` is above 0. Set by the training loop."""

    do_test: bool | None = param(None)
    """Whether there is test data and `eval_iters` is above 0. Set by the training loop."""

    distributed_backend: Literal["nccl", "gloo", "mpi"] = param(
        "nccl", origin="Meg", megatron="distributed-backend", effect="launcher"
    )
    """Library through which ranks communicate: `nccl` (for GPUs), `gloo` (for CPUs) or `mpi`. Without a GPU, `gloo` is
    used instead of `nccl`."""

    DDP_impl: Literal["local", "torch"] = param(
        "local", origin="Meg", effect="none", no_effect_reason="DeepSpeed averages the gradients"
    )
    """Retired in March 2021: remove it. DeepSpeed averages the gradients, so neither of Megatron's data parallel
    implementations, `local` and `torch`, is used."""

    lazy_mpu_init: bool = param(False, origin="Meg", megatron="lazy-mpu-init")
    """Implies `use_cpu_initialization`. In Megatron, it also leaves setting up the process groups to an external
    program; a run that deepy starts always sets them up itself."""

    local_rank: int | None = param(
        None,
        origin="Meg",
        megatron="local-rank",
        effect="none",
        no_effect_reason="the launcher sets it for every process",
    )
    """Number of this process on its machine. The launcher sets it for every rank."""

    rank: Natural | None = param(None, effect="none", no_effect_reason="the launcher sets it for every process")
    """Rank of this process in the run. The launcher sets it for every rank."""

    deepspeed_mpi: bool = param(False, origin="Meg", effect="launcher")
    """Starts the ranks with the `mpirun` of the MPI implementation that `launcher` names (by default Open MPI), even on
    one machine, and reads rank and world size from MPI's environment. Needs a `hostfile`. Set the rendezvous address
    with `master_addr`. For a run on this machine only, also set `no_ssh_check: true`. Arguments for mpirun, such as
    `--allow-run-as-root`, belong in `launcher_args`."""

    deepspeed_slurm: bool = param(False, effect="launcher")
    """Reads rank and world size from Slurm's environment, for runs started by `srun`."""

    deepscale: bool = param(False, effect="none", no_effect_reason="it is the former name of a DeepSpeed flag")
    """Former name of DeepSpeed's flag `--deepspeed`; has no effect."""

    deepscale_config: str | None = param(
        None, effect="none", no_effect_reason="it is the former name of a DeepSpeed flag"
    )
    """Former name of DeepSpeed's flag `--deepspeed_config`; has no effect."""

    adlr_autoresume: bool = param(False, origin="Meg", megatron="adlr-autoresume")
    """Looks for a file named `stop` in `run_dir` every `adlr_autoresume_interval` iterations. If it exists (`touch`
    creates it), the run removes it, saves a checkpoint and ends with exit code 0; started again with `load`, it
    continues. In Megatron-LM, this setting queries NVIDIA's cluster software instead."""

    adlr_autoresume_interval: Count = param(1000, origin="Meg", megatron="adlr-autoresume-interval")
    """Iterations between two checks for the file `stop`, if `adlr_autoresume` is on."""

"""DeepSpeed's optimizer and schedule: sections `optimizer` and `scheduler`, with the parameters of every type.

`used_by_types` holds types in lower case; an optimizer's type is compared without regard to case. In the parameters'
text, None means that the type's own default holds, where types differ in it.
"""

from __future__ import annotations

from typing import Literal

from neoxargs.registry import data_file
from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, Fraction, Natural, NonNegative, Positive

# Types DeepSpeed builds itself, types GPT-NeoX adds, and the optimizers of torch that DeepSpeed finds by name.
ADAM = ("adam", "adamw")
ONEBIT = ("onebitadam", "zerooneadam", "onebitlamb")
MUP = ("muadam", "muadamw", "musgd")
NEOX = ("cpu_adam", "cpu_torch_adam", "sm3", "madgrad_wd")
TORCH = ("sgd", "rmsprop", "radam", "nadam", "adamax", "adadelta", "asgd", "rprop", "adafactor", "sparseadam")
TYPES = (*ADAM, "lamb", *ONEBIT, "lion", "adagrad", "muon", *MUP, *NEOX, *TORCH)

_LAMBS = ("lamb", "onebitlamb")
_BETAS = (
    *ADAM, *_LAMBS, "onebitadam", "zerooneadam", "lion", "muon", "muadam", "muadamw", "cpu_adam", "cpu_torch_adam",
    "radam", "nadam", "adamax", "sparseadam",
)  # fmt: skip
_TORCH_KERNELS = (*ADAM, "cpu_torch_adam", "adagrad", *(t for t in TORCH if t != "sparseadam"))
_NO_WEIGHT_DECAY = ("sm3", "rprop", "sparseadam")
_NO_EPS = ("lion", "sgd", "musgd", "asgd", "rprop", "adafactor")


class Optimizer(Group, origin="DSC", effect="optimizer", section="optimizer"):
    """Which optimizer updates the weights."""

    type: str | None = param(
        None,
        refused={
            "LBFGS": "each of its steps computes the loss several times, and DeepSpeed's engine computes it once",
            "SparseAdam": "it needs sparse gradients, and deepy's embedding has dense ones",
            "Adafactor": "it needs whole rows and columns of a matrix, which ZeRO's ranks do not hold",
            "": "it is not an optimizer of DeepSpeed, torch, GPT-NeoX or deepy",
        },
    )
    """Name of the optimizer: Adam, AdamW, Lamb, OneBitAdam, ZeroOneAdam, OneBitLamb, Lion, Adagrad, Muon, MuAdam,
    MuAdamW, MuSGD, cpu_adam, cpu_torch_adam, sm3, madgrad_wd, or an optimizer of torch such as SGD. `optimizer_type` is
    the same setting."""

    legacy_fusion: bool = param(False)
    """In fp16 without ZeRO, use the older fused Adam wrapper, whose checkpoints have a different layout."""

    scheduler: dict[str, object] | None = param(
        None,
        to=(),
        effect="none",
        no_effect_reason="DeepSpeed reads the `scheduler` section only at the top level",
    )
    """No effect: some published files put the section here, where DeepSpeed has never looked; it belongs at the top
    level."""


class OptimizerParams(Group, origin="DSC", effect="optimizer", section="optimizer.params"):
    """The optimizer's own settings. Some apply only to certain optimizer types."""

    lr: NonNegative | None = param(None)
    """Learning rate; with a schedule, its highest value. `lr` at the top level is the same setting."""

    betas: list[float] | None = param(None, used_by_types=_BETAS)
    """Decay of the running means of the gradient and of its square, each below 1. The default of most types is [0.9,
    0.999]; GPTs are usually trained with [0.9, 0.95]."""

    eps: NonNegative | None = param(None, used_by_types=tuple(t for t in TYPES if t not in _NO_EPS))
    """Added to the denominator against division by zero; 1e-8 for Adam."""

    weight_decay: NonNegative | None = param(None, used_by_types=tuple(t for t in TYPES if t not in _NO_WEIGHT_DECAY))
    """Coefficient of weight decay. `weight_decay` at the top level is the same setting; biases and norms are exempt."""

    max_grad_norm: NonNegative | None = param(None, to=())
    """Retired: use `gradient_clipping`, which gets this value unless it is set. DeepSpeed refuses this key."""

    bias_correction: bool = param(True, used_by_types=(*ADAM, *_LAMBS, "onebitadam", "zerooneadam", "cpu_adam"))
    """Correct the running means for their initial bias towards zero."""

    amsgrad: bool = param(
        False, used_by_types=(*ADAM, *_LAMBS, "onebitadam", "zerooneadam", "cpu_adam", "cpu_torch_adam", "adagrad")
    )
    """Use the largest running average of squared gradients so far. Only torch's Adam supports this; DeepSpeed's own
    types refuse or ignore it."""

    adam_w_mode: bool = param(True, used_by_types=("adam", "adamw", "muon"))
    """Decay weights directly (AdamW) instead of through the gradient. The type AdamW always does this."""

    torch_adam: bool = param(False, used_by_types=("adam", "adamw", "muon"))
    """Use torch's implementation instead of DeepSpeed's; slower, but nothing has to be compiled."""

    set_grad_none: bool = param(True, used_by_types=("adam", "adamw", "lion"))
    """Free gradients after a step instead of filling them with zeros."""

    fp32_optimizer_states: bool = param(True, used_by_types=("adam", "adamw", "cpu_adam", "lion", "adagrad", "muon"))
    """On the CPU, keep the moments in fp32 regardless of the weights' data type."""

    fused: bool | None = param(None, used_by_types=("adam", "adamw", "cpu_torch_adam", "adagrad", "sgd"))
    """torch's implementation: one kernel for all tensors. Cannot be combined with `foreach`. Adam and AdamW need
    `torch_adam`."""

    foreach: bool | None = param(None, used_by_types=_TORCH_KERNELS)
    """torch's implementation: update lists of tensors together; None lets torch decide. Adam and AdamW need
    `torch_adam`."""

    maximize: bool = param(False, used_by_types=(*_TORCH_KERNELS, "sparseadam"))
    """torch's implementation: maximise instead of minimise."""

    capturable: bool = param(
        False,
        used_by_types=(*ADAM, "cpu_torch_adam", *(t for t in TORCH if t not in ("sgd", "adafactor", "sparseadam"))),
    )
    """torch's implementation: allow the step to be captured in a CUDA graph."""

    differentiable: bool = param(False, used_by_types=tuple(t for t in _TORCH_KERNELS if t != "adafactor"))
    """torch's implementation: let gradients flow through the step."""

    decoupled_weight_decay: bool = param(False, used_by_types=("adam", "cpu_torch_adam", "radam", "nadam"))
    """torch's implementation: decay weights directly instead of through the gradient."""

    # Lamb
    max_coeff: Positive = param(10.0, used_by_types=_LAMBS)
    """Upper bound of the trust ratio, which scales a layer's update to the norm of its weights."""

    min_coeff: NonNegative = param(0.01, used_by_types=_LAMBS)
    """Lower bound of the trust ratio, which scales a layer's update to the norm of its weights."""

    eps_inside_sqrt: bool = param(False, used_by_types=(*_LAMBS, "onebitadam", "zerooneadam"))
    """Add `eps` before taking the square root instead of after."""

    # 1-bit and 0/1 optimizers
    freeze_step: Natural = param(100_000, used_by_types=("onebitadam", "onebitlamb"))
    """Number of steps of ordinary, uncompressed training before communication is compressed to one bit per value. A
    tenth to a quarter of the run is usual. Cannot be combined with ZeRO."""

    cuda_aware: bool = param(False, used_by_types=ONEBIT)
    """Whether the MPI library can send GPU memory directly. Read only with `comm_backend_name: mpi`."""

    comm_backend_name: Literal["nccl", "mpi", "hccl", "compressed", "gloo"] = param(
        "nccl",
        used_by_types=ONEBIT,
        refused={
            "mpi": "DeepSpeed's code for it needs cupy and mpi4py, and sends the same bits as nccl",
            "hccl": "it is the library of Huawei's NPUs, which deepy does not support",
            "compressed": "it needs an operator that DeepSpeed has only for Intel's GPUs",
        },
    )
    """Backend of the compressed communication. `nccl` and `gloo` use torch's process groups, the others DeepSpeed's own
    code. train.py uses the backend of the run, `nccl` or `gloo`, and supports no other."""

    var_freeze_step: Natural = param(100_000, used_by_types=("zerooneadam",))
    """Number of steps after which the running average of squared gradients is no longer updated."""

    var_update_scaler: Count = param(16, used_by_types=("zerooneadam",))
    """Number of updates of the running average of squared gradients after which the interval between two updates
    doubles."""

    local_step_scaler: Count = param(32678, used_by_types=("zerooneadam",))
    """Once `var_freeze_step` is reached, the interval between communications doubles each time this number of steps has
    passed."""

    local_step_clipper: Count = param(16, used_by_types=("zerooneadam",))
    """Maximum interval between communications, in steps."""

    coeff_beta: Fraction = param(0.9, used_by_types=("onebitlamb",))
    """Decay of the running mean of each layer's trust ratio."""

    factor_max: Positive = param(4.0, used_by_types=("onebitlamb",))
    """Upper bound of the factor by which the compressed stage adjusts a layer's trust ratio."""

    factor_min: NonNegative = param(0.5, used_by_types=("onebitlamb",))
    """Lower bound of the factor by which the compressed stage adjusts a layer's trust ratio."""

    factor_threshold: NonNegative = param(0.1, used_by_types=("onebitlamb",))
    """Maximum relative change, from one step to the next, of the factor by which the compressed stage adjusts a layer's
    trust ratio."""

    # Muon
    muon_lr: NonNegative | None = param(None, used_by_types=("muon",))
    """Learning rate of the matrices that Muon updates. Default: `lr`."""

    adam_lr: NonNegative | None = param(None, used_by_types=("muon",))
    """Learning rate of the other weights, which Adam updates. Default: `lr`."""

    ns_method: Literal["gram", "standard"] = param("gram", used_by_types=("muon",))
    """How the update is orthogonalised: `gram` works on the smaller product matrix and is faster."""

    # momentum and its relatives
    momentum: NonNegative | None = param(None, used_by_types=("sgd", "musgd", "sm3", "madgrad_wd", "muon", "rmsprop"))
    """Momentum: the fraction of the previous update that is carried over into the current one, below 1. The default is
    0 for sgd, sm3 and rmsprop, 0.9 for madgrad_wd, and 0.95 for Muon."""

    dampening: float = param(0.0, used_by_types=("sgd", "musgd"))
    """Fraction by which the gradient's contribution to the momentum is reduced."""

    nesterov: bool = param(False, used_by_types=("sgd", "musgd"))
    """Look ahead along the momentum (Nesterov)."""

    beta: Fraction = param(0.0, used_by_types=("sm3",))
    """Decay of the accumulated squares; 0 accumulates without decay."""

    decoupled_wd: bool = param(False, used_by_types=MUP)
    """Do not scale weight decay with a layer's width."""

    # optimizers of torch
    lr_decay: NonNegative = param(0.0, used_by_types=("adagrad",))
    """How fast the learning rate falls: in step n, it is `lr` / (1 + (n - 1) x `lr_decay`)."""

    initial_accumulator_value: NonNegative = param(0.0, used_by_types=("adagrad",))
    """Initial value of the sum of squares."""

    alpha: Fraction | None = param(None, used_by_types=("rmsprop", "asgd"))
    """rmsprop: decay of the running average of squared gradients, by default 0.99. asgd: exponent of the decay of the
    learning rate, by default 0.75."""

    centered: bool = param(False, used_by_types=("rmsprop",))
    """Normalise by an estimate of the gradient's variance instead of its mean square."""

    momentum_decay: NonNegative = param(0.004, used_by_types=("nadam",))
    """How fast the momentum rises from half of the first beta to all of it."""

    rho: Fraction = param(0.9, used_by_types=("adadelta",))
    """Decay of the running average of squared gradients."""

    lambd: NonNegative = param(1e-4, used_by_types=("asgd",))
    """Decay term: pulls the weights towards zero in every step, and makes the learning rate fall."""

    t0: NonNegative = param(1e6, used_by_types=("asgd",))
    """Step at which averaging begins."""

    etas: list[float] = param([0.5, 1.2], used_by_types=("rprop",))
    """Factors by which a step size shrinks and grows."""

    step_sizes: list[float] = param([1e-6, 50.0], used_by_types=("rprop",))
    """Smallest and largest step size."""

    beta2_decay: float = param(-0.8, used_by_types=("adafactor",))
    """Exponent with which the decay of the running average of squared gradients approaches 1."""

    d: Positive = param(1.0, used_by_types=("adafactor",))
    """Maximum root mean square of an update; a larger update is scaled down to it."""


class Scheduler(Group, origin="DSC", effect="schedule", section="scheduler"):
    """DeepSpeed's own learning rate schedule, instead of `lr_decay_style`, `warmup` and `min_lr`."""

    type: Literal["LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"] | None = param(None)
    """Name of the schedule. WarmupLR rises and then stays constant, WarmupDecayLR rises and then falls linearly to 0,
    WarmupCosineLR rises and then falls along a cosine; OneCycle rises, falls and then decays; LRRangeTest keeps rising,
    to find the highest learning rate that works."""


data_file.declare(__name__, "scheduler.params")

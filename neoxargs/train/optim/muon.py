"""Muon on whole matrices, however ZeRO and tensor parallelism divide them.

Muon replaces the momentum of a matrix by the nearest orthogonal matrix, so it needs the momentum of the whole matrix:
of queries, keys and values one by one, although they are one weight here, as are the two halves of a gated MLP. Ranks
with parts of a matrix gather its momentum, compute the whole update and keep their part of it.
DeepSpeed 0.19 has Muon too. It adds raw gradients, like SGD, unless its optimizer of ZeRO 1 to 3 runs (not in fp32 with
ZeRO 0, nor where it accumulates bf16 gradients in fp32), clips the orthogonal matrices to `gradient_clipping`, and
treats everything that is one weight as one matrix, the output layer among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from neoxargs.config.config import Config
from neoxargs.facts.lora import target
from neoxargs.facts.model import GATED
from neoxargs.facts.optimizers import rate_factors
from neoxargs.train.deepspeed import interface
from neoxargs.train.deepspeed.optimizer_layout import Piece, optimizer_layout
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.optim.lamb import adam_update
from neoxargs.train.parallel.layers import TensorShard, join_slices, rank_slice, shape_of, unsharded_shape
from neoxargs.train.process.collectives import gather
from neoxargs.train.process.mesh import Mesh

if TYPE_CHECKING:
    from neoxargs.config.groups import OptimizerParams

#: Coefficients of the iteration of the author's implementation (kellerjordan.github.io/posts/muon).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
#: `adjust_lr_fn` -> factor of the update of a matrix with so many rows and columns: the author's, which Megatron-LM
#: calls `shape_scaling`, that of Liu et al. 2025 (arXiv:2502.16982, equation 4), and Megatron-LM's two others.
FACTORS: dict[str, Callable[[int, int], float]] = {
    "original": lambda rows, columns: max(1.0, rows / columns) ** 0.5,
    "match_rms_adamw": lambda rows, columns: 0.2 * max(rows, columns) ** 0.5,
    "spectral": lambda rows, columns: float(max(rows, columns) ** 0.5),
    "unit_rms_norm": lambda rows, columns: float((rows / columns) ** 0.5),
}
#: Number of groups of rows in a weight that consists of several matrices, and the rows of each of these in a group.
Rows = tuple[int, list[int]]


class Matrix(NamedTuple):
    """Elements of a matrix that this rank updates, and how to find the whole matrix among those of all ranks."""

    piece: Piece
    shape: torch.Size
    """Of this tensor parallel rank's slice."""
    shard: TensorShard | None
    """How tensor parallel ranks divide the matrix; None if each has it as a whole."""
    rows: Rows | None
    """None if the weight is one matrix."""
    of_partitions: int
    """With ZeRO-3, the elements of the weight on each rank, with padding; else 0."""


def divide_groups(groups: list[dict[str, Any]], names: Mapping[str, nn.Parameter]) -> list[dict[str, Any]]:
    """Split each parameter group: the matrices that Muon updates, and the weights that Adam updates."""
    name_of = {id(weight): name for name, weight in names.items()}
    divided = []
    for group in groups:
        for chosen in (True, False):
            weights = [
                weight for weight in group["params"] if _is_matrix(name_of.get(id(weight), ""), weight) is chosen
            ]
            divided += [{**group, "params": weights, "orthogonal": chosen}] if weights else []
    return divided


def _is_matrix(name: str, weight: nn.Parameter) -> bool:
    """Whether a weight is a hidden matrix, or a stack of those of experts; not embeddings and the output layer."""
    shape = shape_of(weight)
    dimensions = 3 if ".experts." in name else 2
    return name.startswith("layers.") and name.endswith(".weight") and len(shape) == dimensions


# Not "Muon": DeepSpeed applies its own Muon to the gradients of any optimizer with this in the name of its class.
class Orthogonal(Optimizer):
    """Muon: Jordan et al. 2024; AdamW for parameter groups without `orthogonal`.

    factors: of the learning rate, for matrices and for other weights.
    """

    def __init__(self, groups: Any, params: OptimizerParams, config: Config) -> None:
        lr, (beta1, beta2) = params.lr or 0.0, params.betas or (0.9, 0.999)
        defaults = {"lr": lr, "betas": (beta1, beta2), "eps": 1e-8 if params.eps is None else params.eps}
        super().__init__(groups, {**defaults, "weight_decay": 0.0, "orthogonal": False})
        self.momentum = 0.95 if params.momentum is None else params.momentum
        self.nesterov, self.decoupled = params.nesterov is not False, params.adam_w_mode
        factor, extra = FACTORS[params.adjust_lr_fn], params.extra_scale_factor
        self.update_of = partial(
            _each_scaled,
            iteration=partial(orthogonal, gram=params.ns_method == "gram", steps=params.ns_steps),
            factor=lambda rows, columns: extra * factor(rows, columns),
        )
        self.splits_qkv = params.split_qkv
        factors = rate_factors(params)
        self.factors = {True: factors["muon"], False: factors["adam"]}
        self.config = config
        self.matrices: dict[Tensor, list[Matrix]] | None = None

    def attach(self, engine: interface.Engine, mesh: Mesh) -> None:
        """Find the matrices in the tensors of a DeepSpeed engine. Steps before this have no effect."""
        layout, weights = optimizer_layout(engine), named_weights(engine.module)
        assert layout is not None
        self.device, self.tensor = engine.device, mesh.tensor
        self.matrices = {tensor: [] for tensor in layout.tensors}
        # The ranks that have the other parts of a tensor.
        zero3 = layout.kind == "zero3"
        outer, ranks = engine.optimizer, None
        if isinstance(outer, interface.Zero12 | interface.Bf16):
            ranks = outer.real_dp_process_group
        elif isinstance(outer, interface.Zero3):
            ranks = outer.sub_group_process_groups
        self.ranks = {tensor: ranks[number] if ranks else None for number, tensor in enumerate(layout.tensors)}
        for piece in layout.pieces:
            weight: Any = weights[piece.name]
            shape, shard = shape_of(weight), getattr(weight, "tensor_shard", None)
            if shard is not None and (shard.size == 1 or shard.dimension < len(shape) - 2):  # whole experts
                shard = None
            rows = self._rows(piece.name, unsharded_shape(weight)[-2] if len(shape) > 1 else 0)
            of_partitions = weight.ds_tensor.ds_numel if zero3 else 0
            self.matrices[layout.tensors[piece.tensor]].append(Matrix(piece, shape, shard, rows, of_partitions))

    def _rows(self, name: str, count: int) -> Rows | None:
        """Return how the matrices of a weight with so many rows are interleaved; None if it is one matrix."""
        if name.endswith("attention.query_key_value.weight"):
            if not self.splits_qkv:
                return None
            fused = target(self.config, "attention.query_key_value")
            return fused.groups, [rows for _, rows in fused.parts]
        if name.endswith("dense_h_to_4h.weight") and self.config.mlp.activation in GATED:
            return 1, [count // 2, count // 2]
        return None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights. Collective under ZeRO and tensor parallelism; `closure` is ignored."""
        if self.matrices is None:  # DeepSpeed takes a step on zero gradients to allocate states
            return
        for group in self.param_groups:
            rate = group["lr"] * self.factors[group["orthogonal"]]
            update = self._orthogonal if group["orthogonal"] else self._adam
            for tensor in group["params"]:
                if tensor.grad is None:
                    continue
                if self.decoupled or group["orthogonal"]:
                    tensor.mul_(1 - rate * group["weight_decay"])
                tensor.add_(update(tensor, group), alpha=-rate)

    def _adam(self, tensor: Tensor, group: dict[str, Any]) -> Tensor:
        """Return Adam's update; update the moments."""
        gradient = tensor.grad
        assert gradient is not None
        if not self.decoupled:
            gradient = gradient.add(tensor, alpha=group["weight_decay"])
        return adam_update(self.state[tensor], gradient, group, ("exp_avg", "exp_avg_sq"))

    def _orthogonal(self, tensor: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the orthogonal matrices of the momentum in a tensor's shape; update the momentum. Collective."""
        assert self.matrices is not None and tensor.grad is not None
        momentum = self.state[tensor].setdefault("momentum_buffer", torch.zeros_like(tensor))
        momentum.lerp_(tensor.grad, 1 - self.momentum)
        wanted = (torch.lerp(tensor.grad, momentum, self.momentum) if self.nesterov else momentum).flatten()
        ranks, update = self.ranks[tensor], torch.zeros_like(wanted)
        own, of_all = self._gathered(wanted, ranks)
        for piece, shape, shard, rows, of_partitions in self.matrices[tensor]:
            if of_partitions:
                flat = of_all[:, piece.start : piece.start + of_partitions].flatten()[: shape.numel()]
            else:
                # With ZeRO-1 and 2, a matrix begins where an earlier rank has its first elements.
                first = own * wanted.numel() + piece.start - piece.begin
                flat = of_all.flatten()[first : first + shape.numel()]
            own_part = flat.view(shape)
            if shard is None:
                whole = self.update_of(own_part, rows).flatten()
            else:
                slices = self._gathered(own_part.contiguous(), self.tensor.group)[1].unbind()
                whole = rank_slice(self.update_of(join_slices(slices, shard), rows), shard).flatten()
            update[piece.start : piece.start + piece.length] = whole[piece.begin : piece.begin + piece.length]
        return update.view_as(tensor)

    def _gathered(self, x: Tensor, ranks: Any) -> tuple[int, Tensor]:
        """Return this rank's number among `ranks`, and the tensors of all of them: (ranks, ...)."""
        if ranks is None or dist.get_world_size(ranks) == 1:
            return 0, x.unsqueeze(0)
        return dist.get_rank(ranks), gather(x.to(self.device), ranks)


def _each_scaled(
    weight: Tensor, rows: Rows | None, iteration: Callable[[Tensor], Tensor], factor: Callable[[int, int], float]
) -> Tensor:
    """Replace each matrix in a weight (..., rows, columns) by an orthogonal one times its factor."""
    if rows is None:
        return iteration(weight) * factor(weight.size(-2), weight.size(-1))
    (groups, sizes), stack, columns = rows, weight.shape[:-2], weight.size(-1)
    parts = torch.split(weight.reshape(*stack, groups, -1, columns), sizes, dim=-2)
    found = [_each_scaled(part.reshape(*stack, -1, columns), None, iteration, factor) for part in parts]
    by_group = [part.reshape(*stack, groups, -1, columns) for part in found]
    return torch.cat(by_group, dim=-2).reshape(weight.shape)


def orthogonal(x: Tensor, gram: bool = True, steps: int = 5) -> Tensor:
    """Return about the nearest matrix with singular values of 1, by a Newton-Schulz iteration; (..., rows, columns).

    The singular values that result of 5 steps lie between about 0.7 and 1.2, which suffices for an optimizer.
    gram: iterate on the smaller product of the matrix with itself, which is faster. It rounds singular values that are
    small beside the largest one.
    """
    if x.size(-2) > x.size(-1):
        return orthogonal(x.mT, gram, steps).mT
    a, b, c = COEFFICIENTS
    x = x.float() / torch.linalg.matrix_norm(x.float(), keepdim=True).clamp(min=1e-7)
    if not gram:
        for _ in range(steps):
            product = x @ x.mT
            x = a * x + (b * product + c * product @ product) @ x
        return x
    # Each step multiplies x by a polynomial of x x^T, and these polynomials commute with each other.
    product, identity = x @ x.mT, torch.eye(x.size(-2), device=x.device)
    factor = identity
    for _ in range(steps):
        polynomial = a * identity + b * product + c * product @ product
        factor = polynomial @ factor
        product = polynomial @ product @ polynomial
    return factor @ x

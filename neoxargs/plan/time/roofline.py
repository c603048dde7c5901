"""The time that a device needs for the kernels of a transformer layer and of the loss, forward and backward.

A matrix product takes its operations at the rate that large products reach, and the traffic of its operands and result
at the rate of device memory: small and narrow products are slow because they move more numbers per operation. Kernels
of attention have a rate of their own. Everything else (norms, residual sums, activation functions, rotary embeddings,
dropout) only moves numbers: memory/traffic.py counts them.
"""

from __future__ import annotations

from functools import lru_cache

from neoxargs.base.record import Record
from neoxargs.config.config import Config
from neoxargs.facts.attention import attention_width, head_dim, layer_window, qkv_rows, score_rule
from neoxargs.facts.batch import sequences_per_micro_batch
from neoxargs.facts.context import uses_ring
from neoxargs.facts.layer_kinds import attention_layers
from neoxargs.facts.model import compiles_cross_entropy, matrices_of_layer, mlp_rows, mlp_width
from neoxargs.facts.trained import is_frozen
from neoxargs.hosts.device_table import Device
from neoxargs.plan.given.assumptions import SINGLE, Assumptions
from neoxargs.plan.memory import experts, recurrent
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.attention import unfused_layers
from neoxargs.plan.memory.traffic import passes

#: Forward and backward pass of a matrix product: the result, and the gradients of both operands, or of a frozen model's
#: activations only.
PRODUCTS, FROZEN_PRODUCTS = 3, 2
#: Products of fused attention: 2 forward and 5 backward, which computes the scores again.
FUSED_FORWARD, FUSED = 2, 7


class Time(Record):
    """Seconds of one micro batch on one rank."""

    products: float
    attention: float
    elementwise: float

    @property
    def total(self) -> float:
        return self.products + self.attention + self.elementwise


class Rates(Record):
    """What kernels reach on a device: operations and bytes per second."""

    products: float
    attention: float
    memory: float

    @classmethod
    def of(cls, device: Device, number_size: int, seq_length: int, assumed: Assumptions) -> Rates:
        peak = device.single if number_size == SINGLE else device.half
        share, fused = (getattr(assumed, name) for name in compute_rates(device, number_size))
        long_enough = seq_length / (seq_length + assumed.attention_tokens)
        return cls(peak * share, peak * fused * long_enough, device.bandwidth * assumed.bandwidth)


def compute_rates(device: Device, number_size: int) -> tuple[str, str]:
    """Return the assumptions that have the rates of products and of attention."""
    suffix = "_volta" if device.generation == VOLTA else "_hopper" if device.generation >= HOPPER else ""
    products = "matmul_single" if number_size == SINGLE else f"matmul{suffix}"
    return products, "attention_hopper" if device.generation >= HOPPER else "attention"


#: Value of `unfused_attention` for scores that the backward pass computes again.
COMPUTED_AGAIN = 2
#: Compute capability of V100, H100.
VOLTA, HOPPER = 7, 9


def layer_time(sizes: ActivationSizes, device: Device, layer: int) -> tuple[Time, Time]:
    """Return the time of a layer: of its forward pass, and of forward and backward pass."""
    recurrence = recurrent.memory(sizes.config, layer)
    if recurrence is None:
        return _attention_layer_time(sizes, device)
    rates = Rates.of(device, sizes.number_size, sizes.config.shape.seq_length, sizes.assumed)
    once = 2.0 * sizes.tokens * matrices_of_layer(sizes.config, layer) / sizes.tensor / rates.products
    forward, backward = recurrence.moved(sizes)  # a recurrence moves more than it computes
    both = Time(_products_of(sizes.config) * once, 0.0, (forward + backward) / rates.memory)
    return Time(once, 0.0, forward / rates.memory), both


@lru_cache(maxsize=1)  # of one plan, for all stages
def _attention_layer_time(sizes: ActivationSizes, device: Device) -> tuple[Time, Time]:
    rates = Rates.of(device, sizes.number_size, sizes.config.shape.seq_length, sizes.assumed)
    attention = _attention(sizes, rates)
    once = _products(sizes, rates)
    forward, backward = passes(sizes)
    # What elementwise kernels move, relative to the count of torch's own.
    fused = sizes.assumed.eager * (sizes.assumed.compiled if sizes.config.fusion.compile_layers else 1.0)
    elementwise = (forward + backward) * (sizes.hidden * fused) / rates.memory
    share = forward / (forward + backward)
    both = Time(_products_of(sizes.config) * once, attention[1], elementwise)
    return Time(once, attention[0], elementwise * share), both


def _products_of(config: Config) -> int:
    return FROZEN_PRODUCTS if is_frozen(config) else PRODUCTS


def loss_time(sizes: ActivationSizes, rows: int, device: Device) -> Time:
    """Return the time of the output layer and loss, forward and backward. rows: of the vocabulary on a rank."""
    rates = Rates.of(device, sizes.number_size, sizes.config.shape.seq_length, sizes.assumed)
    product = _product(sizes, rates, rows, sizes.config.shape.hidden_size)
    compiled = compiles_cross_entropy(sizes.config) and device.kind == "cuda"
    per_logit = sizes.assumed.compiled_logit_traffic if compiled else sizes.assumed.logit_traffic
    return Time(_products_of(sizes.config) * product, 0.0, sizes.tokens * rows * per_logit / rates.memory)


def _products(sizes: ActivationSizes, rates: Rates) -> float:
    """Seconds of the four products of a layer, forward."""
    config, tensor = sizes.config, sizes.tensor
    hidden, width = config.shape.hidden_size, mlp_width(config.shape, config.mlp)
    networks = _networks(sizes)
    of_attention = ((qkv_rows(config) // tensor, hidden), (hidden, attention_width(config.shape) // tensor))
    of_networks = ((mlp_rows(config) // tensor, hidden), (hidden, width // tensor))
    products = sum(_product(sizes, rates, *shape) for shape in of_attention)
    return products + sum(_product(sizes, rates, *shape, *networks) for shape in of_networks)


def _networks(sizes: ActivationSizes) -> tuple[float, float]:
    """Return per layer the feed-forward networks that a token passes through, and those that a rank has weights of."""
    moe, share = sizes.config.moe, experts.share(sizes.config)
    held = moe.moe_num_experts // sizes.config.parallel.moe_expert_parallel_size
    held += experts.common_networks(sizes.config)
    return experts.networks(sizes.config, sizes.assumed), 1 + share * (held - 1)


def _product(
    sizes: ActivationSizes, rates: Rates, outputs: int, inputs: int, networks: float = 1, held: float = 1
) -> float:
    """Return the seconds of a matrix product. networks, held: as `_networks` returns them."""
    tokens = sizes.tokens * networks
    moved = (tokens * (inputs + outputs) + held * inputs * outputs) * sizes.number_size
    rate = rates.products * min(_alignment(inputs), _alignment(outputs))
    return 2.0 * tokens * inputs * outputs / rate + moved / rates.memory


#: Largest power of two that divides a dimension -> share of the rate of products. Tensor cores read rows of 128 bytes:
#: Anthony et al. 2024 (arXiv:2401.14489, figure 7) find full rates with multiples of 64, a third less with those of 8.
ALIGNED = ((64, 1.0), (32, 0.9), (16, 0.8), (8, 0.65))
#: The share below that, where no tensor cores are used: an A100's 78 TFLOP/s at most.
UNALIGNED = 0.15


def _alignment(size: int) -> float:
    """Return the share of the rate of products that one reaches with a dimension of this size."""
    return next((share for multiple, share in ALIGNED if size % multiple == 0), UNALIGNED)


def _attention(sizes: ActivationSizes, rates: Rates) -> tuple[float, float]:
    """Seconds of scores, softmax and weighted sum: forward, and forward and backward.

    The mean of all layers. A fused kernel skips what the causal mask hides, half of the scores, or what lies outside of
    a sliding window.
    """
    share = unfused_layers(sizes)
    parts = [(part, of(sizes, rates)) for part, of in ((share, _in_steps), (1 - share, _in_one_kernel)) if part]
    return sum(part * forward for part, (forward, _) in parts), sum(part * both for part, (_, both) in parts)


def _in_steps(sizes: ActivationSizes, rates: Rates) -> tuple[float, float]:
    """Seconds of attention as products and a softmax one after the other: forward, and forward and backward."""
    config, product = sizes.config, _product_of_scores(sizes)
    length, heads = config.shape.seq_length, sizes.heads
    scores = sequences_per_micro_batch(config) * heads * length * length
    moved = scores * sizes.assumed.score_bytes * sizes.number_size / 2 / rates.memory
    rate = rates.products * _alignment(head_dim(config.shape))
    forward, both = 2 * product / rate + moved / 3, 6 * product / rate + moved
    return forward, both + (forward if sizes.assumed.unfused_attention == COMPUTED_AGAIN else 0.0)


def _in_one_kernel(sizes: ActivationSizes, rates: Rates) -> tuple[float, float]:
    """Seconds of attention in a fused kernel: forward, and forward and backward."""
    config, length = sizes.config, sizes.config.shape.seq_length
    windows = [layer_window(config.attention, layer) or length for layer in attention_layers(config)]
    visible = sum(min(0.5, window / length) for window in windows) / len(windows)
    bounded = sizes.assumed.attention_bounded if score_rule(config, 0).softcap else 1.0
    each = _product_of_scores(sizes) * visible / (rates.attention * bounded)
    # In a ring, the backward pass computes the output of each pair of chunks again.
    again = FUSED_FORWARD if uses_ring(config) else 0
    return FUSED_FORWARD * each, (FUSED + again) * each


def _product_of_scores(sizes: ActivationSizes) -> float:
    """Operations of the product of all queries and keys of a rank."""
    config = sizes.config
    pairs = sequences_per_micro_batch(config) * config.shape.seq_length**2
    return 2.0 * pairs * attention_width(config.shape) / (sizes.tensor * sizes.context)

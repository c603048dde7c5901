"""The model's shape: what follows from the sizes that were written, and which sizes do not go together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil
from typing import Any

from neoxargs.problems import did_you_mean
from neoxargs.resolve.rules.divisibility import multiple, nearest
from neoxargs.resolve.rules.rule import Contradiction, Refusal, check, derive

#: What a layer can be.
KINDS = (
    "global", "local", "flash", "sparse_fixed", "sparse_variable", "bigbird", "bslongformer", "gmlp", "amlp", "mamba",
    "rwkv",
)  # fmt: skip
#: Layers that have attention heads which GPT-NeoX can share between queries.
GROUPED = ("global", "flash")
#: Layers without attention heads.
HEADLESS = ("mamba", "rwkv", "gmlp")


@derive
def attention_config(
    attention_config: Sequence[Any] | None,
    num_layers: int,
    sparsity: str,
    sparse_attention__mode: str,
    sections: Collection[str],
) -> list[str]:
    """one kind of attention for each layer; a pattern is repeated, and without one every layer is `global`"""
    if attention_config is None:
        named = {"sparse_variable": MODES[sparse_attention__mode]} if "sparse_attention" in sections else {}
        kinds = [named.get(kind, kind) for kind in SPARSITY[sparsity]]
        return [kinds[layer % 2] for layer in range(num_layers)]
    if sparsity != "none":
        raise Contradiction(
            f"attention_config and sparsity ({sparsity}) both say which layers are sparse",
            "remove sparsity; attention_config is today's way of saying it",
        )
    if all(isinstance(item, str) for item in attention_config):
        patterns = [(list(attention_config), 1)]
    else:
        patterns = [_repeated(item, num_layers) for item in attention_config]
    count = sum(len(kinds) * times for kinds, times in patterns)
    if count != num_layers:
        raise Contradiction(
            f"attention_config describes {count} layers, but num_layers is {num_layers}",
            'write "all" instead of a number to repeat a pattern over all layers: [[["global"], "all"]]',
        )
    return [kind for kinds, times in patterns for kind in kinds * times]


@derive
def max_position_embeddings(seq_length: int) -> int:
    """as many positions as a sample has tokens, seq_length"""
    return seq_length


#: DeepSpeed's names of patterns, as kinds of layers.
MODES = {
    "dense": "global",
    "fixed": "sparse_fixed",
    "variable": "sparse_variable",
    "bigbird": "bigbird",
    "bslongformer": "bslongformer",
}
#: The retired `sparsity`, as what layers 0 and 1, 2 and 3, … are; `sparse_attention.mode` names another pattern.
#: GPT-NeoX began `interspersed` with a sparse layer
#: without pipeline and with a dense one in a pipeline, where all published files ran; here it is the same in both.
SPARSITY = {
    "none": ("global", "global"),
    "all": ("sparse_variable", "sparse_variable"),
    "interspersed": ("global", "sparse_variable"),
}


def _repeated(item: Any, num_layers: int) -> tuple[list[str], int]:
    """The kinds of one `[[kinds], times]`, and how often they come."""
    match item:
        case [[*kinds], "all" | int() as times] if kinds and all(isinstance(kind, str) for kind in kinds):
            pass
        case _:
            raise Contradiction(
                f"attention_config has {item} where [[kinds of layers], times] belongs",
                'write for example [[["global"], 10], [["flash"], 2]], or [[["local", "global"], "all"]]',
            )
    if times == "all" and num_layers % len(kinds):
        raise Contradiction(
            f'attention_config repeats {len(kinds)} kinds of layers over "all" layers, '
            f"but num_layers ({num_layers}) is no multiple of {len(kinds)}",
            f"nearest num_layers: {nearest(num_layers, len(kinds))}",
        )
    return kinds, num_layers // len(kinds) if times == "all" else max(times, 0)


@derive
def num_kv_heads(num_attention_heads: int) -> int:
    """every attention head has keys and values of its own"""
    return num_attention_heads


#: What `mlp_type: llama` made of an activation: it multiplied with a second projection, under the same name.
GATED = {"gelu": "geglu", "relu": "reglu", "silu": "swiglu", "swish": "swiglu"}


@derive
def activation(activation: str | None, mlp_type: str) -> str | None:
    """`mlp_type: llama` gates it"""
    return GATED.get(activation or "gelu", activation) if mlp_type == "llama" else activation


@derive
def intermediate_size(intermediate_size: int | None, hidden_size: int, expansion_factor: float | None) -> int:
    """4 x hidden_size, or expansion_factor x hidden_size"""
    return intermediate_size or int((expansion_factor or 4) * hidden_size)


@derive
def use_cpu_initialization(lazy_mpu_init: bool) -> bool | None:
    """lazy_mpu_init draws initial weights before there is a process group, thus on the CPU"""
    return True if lazy_mpu_init else None


@derive
def attention_softmax_in_fp32(apply_query_key_layer_scaling: bool) -> bool | None:
    """apply_query_key_layer_scaling undoes its scaling inside a softmax that must be fp32"""
    return True if apply_query_key_layer_scaling else None


@check
def one_width(
    intermediate_size: int, expansion_factor: float | None, mlp_type: str, written: Collection[str]
) -> Refusal:
    """intermediate_size and expansion_factor both say how wide the MLP is."""
    if "intermediate_size" not in written or expansion_factor is None:
        return None
    if mlp_type == "llama":
        what = f"intermediate_size ({intermediate_size}) was one of three widths with mlp_type: llama"
        hint = f"instead of mlp_type write intermediate_size: {3 * intermediate_size}, use_bias_in_mlp: false"
        return f"{what}; today it is their sum", f"{hint} and activation: swiglu (for silu; geglu for gelu)"
    both = f"intermediate_size ({intermediate_size}) and expansion_factor ({expansion_factor})"
    return f"{both} both say how wide the MLP is", "keep one of them"


@check
def known_kinds_of_layers(attention_config: Sequence[str]) -> Refusal:
    """Every layer is of a kind that exists."""
    unknown = next((kind for kind in attention_config if kind not in KINDS), None)
    if unknown is None:
        return None
    hint = did_you_mean(unknown, KINDS) or f"layers can be {', '.join(KINDS)}"
    return f"attention_config has no kind of layer called {unknown}", hint


@check
def heads_divide_hidden(hidden_size: int, num_attention_heads: int, attention_config: Sequence[str]) -> Refusal:
    """Every attention head is equally wide."""
    if all(kind in HEADLESS for kind in attention_config):
        return None
    return multiple("hidden_size", hidden_size, "num_attention_heads", num_attention_heads)


@check
def kv_heads_divide_heads(num_attention_heads: int, num_kv_heads: int, attention_config: Sequence[str]) -> Refusal:
    """Every key and value head serves equally many queries, in kinds of attention that can do so."""
    if num_kv_heads == num_attention_heads:
        return None
    other = next((kind for kind in attention_config if kind not in GROUPED), None)
    if other:
        sentence = f"num_kv_heads ({num_kv_heads}) below num_attention_heads ({num_attention_heads}) does not work"
        return f"{sentence} with {other} layers", f"only {' and '.join(GROUPED)} attention shares keys and values"
    return multiple("num_attention_heads", num_attention_heads, "num_kv_heads", num_kv_heads)


@check
def positions_reach(seq_length: int, max_position_embeddings: int, pos_emb: str) -> Refusal:
    """A learned position embedding has a vector for every position of a sequence."""
    if pos_emb != "learned" or seq_length <= max_position_embeddings:
        return None
    return (
        f"seq_length ({seq_length}) is more than max_position_embeddings ({max_position_embeddings})",
        f"write max_position_embeddings: {seq_length}",
    )


@check
def rotary_turns_pairs(hidden_size: int, num_attention_heads: int, rotary_pct: float, pos_emb: str) -> Refusal:
    """Rotary positions turn a head's dimensions two by two."""
    head = hidden_size // num_attention_heads
    turned = int(head * rotary_pct)
    if pos_emb != "rotary" or turned % 2 == 0:
        return None
    what = f"rotary_pct ({rotary_pct}) turns {turned} of the {head} dimensions of a head, which must be an even number"
    return what, f"write rotary_pct: {ceil((turned - 1) / head * 1e4) / 1e4:g}"


@check
def waves_come_in_pairs(hidden_size: int, pos_emb: str) -> Refusal:
    """Sinusoidal positions are as many sines as cosines."""
    if pos_emb != "sinusoidal" or hidden_size % 2 == 0:
        return None
    return f"pos_emb: sinusoidal needs an even hidden_size, not {hidden_size}", f"write {hidden_size + 1}"


@check
def layers_divide_into_unique_ones(num_layers: int, num_unique_layers: int | None) -> Refusal:
    """Every unique layer is used equally often."""
    if num_unique_layers is None:
        return None
    if num_unique_layers > num_layers:
        sentence = f"num_unique_layers ({num_unique_layers}) must be at most num_layers ({num_layers})"
        return sentence, "leave num_unique_layers out to give every layer weights of its own"
    return multiple("num_layers", num_layers, "num_unique_layers", num_unique_layers)


@check
def layers_that_share_are_alike(
    attention_config: Sequence[str], num_layers: int, num_unique_layers: int | None, param_sharing_style: str
) -> Refusal:
    """Layers with the same weights attend in the same way."""
    if num_unique_layers is None or num_layers % num_unique_layers or len(attention_config) != num_layers:
        return None
    spaced, times = param_sharing_style == "spaced", num_layers // num_unique_layers
    groups = [
        attention_config[index * times : (index + 1) * times] if spaced else attention_config[index::num_unique_layers]
        for index in range(num_unique_layers)
    ]
    mixed = next((group for group in groups if len(set(group)) > 1), None)
    if mixed is None:
        return None
    kinds = " and ".join(sorted(set(mixed)))
    what = f"attention_config makes {kinds} layers share weights, with num_unique_layers ({num_unique_layers})"
    return f"{what} and param_sharing_style ({param_sharing_style})", "layers that share weights must be of one kind"


@check
def shared_layers_are_not_recomputed_in_shares(
    num_layers: int,
    num_unique_layers: int | None,
    checkpoint_activations: bool,
    deepspeed_activation_checkpointing: bool,
    zero_optimization__stage: object,
) -> Refusal:
    """ZeRO-2 and 3 take a weight's gradient once; layers recomputed in a backward pass of their own give it twice."""
    shared = num_unique_layers not in (None, num_layers) and checkpoint_activations
    by_itself = zero_optimization__stage == 3 or (zero_optimization__stage == 2 and deepspeed_activation_checkpointing)
    if not (shared and by_itself):
        return None
    with_what = "deepspeed_activation_checkpointing" if zero_optimization__stage == 2 else "checkpoint_activations"
    what = f"num_unique_layers ({num_unique_layers}) with {with_what} does not work with ZeRO stage"
    return f"{what} {zero_optimization__stage}", f"remove {with_what}, or write a lower stage"


@check
def one_norm_is_the_residual(apply_residual_connection_post_layernorm: bool, gpt_j_residual: bool) -> Refusal:
    """Side by side, attention and feed-forward have one residual, which cannot come out of two norms."""
    if not (apply_residual_connection_post_layernorm and gpt_j_residual):
        return None
    return "apply_residual_connection_post_layernorm and gpt_j_residual exclude each other", "remove one of the two"


@check
def fused_gelu_is_not_onnx_safe(onnx_safe: bool, bias_gelu_fusion: bool) -> Refusal:
    """The fused kernel cannot be exported."""
    if not (onnx_safe and bias_gelu_fusion):
        return None
    return "onnx_safe and bias_gelu_fusion exclude each other", "remove one of the two"


@check
def gmlp_keeps_whole_activations(attention_config: Sequence[str], partition_activations: bool) -> Refusal:
    """A gMLP block mixes along the sequence, which is what partitioned activations are cut along."""
    if not partition_activations or not {"gmlp", "amlp"} & set(attention_config):
        return None
    return "gmlp and amlp layers exclude partition_activations", "write partition_activations: false"

"""The model's shape: what follows from the sizes that were written, and which sizes do not go together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil
from typing import Any

from neoxargs.problems import did_you_mean
from neoxargs.resolve.rules.rule import Contradiction, Finding, check, derive, derives, refuse
from neoxargs.resolve.rules.shared_findings import multiple, nearest

#: What a layer can be.
KINDS = (
    "global", "local", "flash", "sparse_fixed", "sparse_variable", "bigbird", "bslongformer", "gmlp", "amlp", "mamba",
    "rwkv",
)  # fmt: skip
#: Layers that have attention heads which GPT-NeoX can share between queries.
GROUPED = ("global", "flash")
#: Layers without attention heads.
HEADLESS = ("mamba", "rwkv", "gmlp")


@derives("attention_config")
def attention_config_covers_every_layer(
    attention_config: Sequence[Any] | None,
    num_layers: int,
    sparsity: str,
    sparse_attention__mode: str,
    sections: Collection[str],
) -> list[str]:
    """one kind of attention for each layer; a pattern is repeated, and without one every layer is `global`

    GPT-NeoX reads the list only when it builds the model, on every rank. A list for another number of layers would
    stop there with an assertion, or leave layers with another attention than was meant.

        attention_config: [[["flash"], 12]]
    """
    if attention_config is None:
        named = {"sparse_variable": MODES[sparse_attention__mode]} if "sparse_attention" in sections else {}
        kinds = [named.get(kind, kind) for kind in SPARSITY[sparsity]]
        return [kinds[layer % 2] for layer in range(num_layers)]
    if sparsity != "none":
        raise Contradiction(
            f"attention_config and sparsity ({sparsity}) both say which layers are sparse",
            "remove sparsity; attention_config is today's way of saying it",
            about=["attention_config", "sparsity"],
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
            about=["attention_config", "num_layers"],
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
                about=["attention_config"],
            )
    if times == "all" and num_layers % len(kinds):
        raise Contradiction(
            f'attention_config repeats {len(kinds)} kinds of layers over "all" layers, '
            f"but num_layers ({num_layers}) is no multiple of {len(kinds)}",
            f"nearest num_layers: {nearest(num_layers, len(kinds))}",
            about=["attention_config", "num_layers"],
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
def mlp_width_given_once(
    intermediate_size: int, expansion_factor: float | None, mlp_type: str, written: Collection[str]
) -> Finding | None:
    """intermediate_size and expansion_factor both say how wide the MLP is, and with mlp_type: llama GPT-NeoX divided
    intermediate_size by three. Where one of them is silently preferred, a model of another size is trained, which
    shows when its checkpoint does not load.

        intermediate_size: 128
        expansion_factor: 2
    """
    if "intermediate_size" not in written or expansion_factor is None:
        return None
    if mlp_type == "llama":
        what = f"intermediate_size ({intermediate_size}) was one of three widths with mlp_type: llama"
        advice = f"instead of mlp_type write intermediate_size: {3 * intermediate_size}, use_bias_in_mlp: false"
        return refuse(
            f"{what}; today it is their sum",
            f"{advice} and activation: swiglu (for silu; geglu for gelu)",
            about=["intermediate_size", "mlp_type"],
        )
    both = f"intermediate_size ({intermediate_size}) and expansion_factor ({expansion_factor})"
    about = ["intermediate_size", "expansion_factor"]
    return refuse(f"{both} both say how wide the MLP is", "keep one of them", about=about)


@check
def attention_kinds_exist(attention_config: Sequence[str]) -> Finding | None:
    """Every layer is of one of the kinds that GPT-NeoX has. A misspelt one would stop every rank when it builds that
    layer, after the start of all processes.

        attention_config: [global, global, global, globl]
    """
    unknown = next((kind for kind in attention_config if kind not in KINDS), None)
    if unknown is None:
        return None
    advice = did_you_mean(unknown, KINDS) or f"layers can be {', '.join(KINDS)}"
    return refuse(f"attention_config has no kind of layer called {unknown}", advice)


@check
def heads_divide_hidden_size(
    hidden_size: int, num_attention_heads: int, attention_config: Sequence[str]
) -> Finding | None:
    """Every attention head takes hidden_size / num_attention_heads dimensions. With a remainder, GPT-NeoX stops in an
    assertion on every rank when it builds the first layer.

        hidden_size: 66
    """
    if all(kind in HEADLESS for kind in attention_config):
        return None
    return multiple("hidden_size", hidden_size, "num_attention_heads", num_attention_heads)


@check
def kv_heads_divide_attention_heads(
    num_attention_heads: int, num_kv_heads: int, attention_config: Sequence[str]
) -> Finding | None:
    """With grouped-query attention, every key and value head serves equally many query heads, and only `global` and
    `flash` layers can group them. Otherwise tensors of two shapes meet in the first forward pass on every rank.

        num_kv_heads: 3
    """
    if num_kv_heads == num_attention_heads:
        return None
    other = next((kind for kind in attention_config if kind not in GROUPED), None)
    if other:
        return refuse(
            f"num_kv_heads ({num_kv_heads}) below num_attention_heads ({num_attention_heads}) does not work"
            f" with {other} layers",
            f"only {' and '.join(GROUPED)} attention shares keys and values",
            about=["num_attention_heads", "num_kv_heads"],
        )
    return multiple("num_attention_heads", num_attention_heads, "num_kv_heads", num_kv_heads)


@check
def learned_positions_cover_seq_length(seq_length: int, max_position_embeddings: int, pos_emb: str) -> Finding | None:
    """A learned position embedding has max_position_embeddings rows. A longer sequence looks up rows that do not
    exist: on a GPU that is "device-side assert triggered", far away from its cause, in the first step.

        seq_length: 64
    """
    if pos_emb != "learned" or seq_length <= max_position_embeddings:
        return None
    return refuse(
        f"seq_length ({seq_length}) is more than max_position_embeddings ({max_position_embeddings})",
        f"write max_position_embeddings: {seq_length}",
        about=["seq_length", "max_position_embeddings"],
    )


@check
def rotary_dims_even(hidden_size: int, num_attention_heads: int, rotary_pct: float, pos_emb: str) -> Finding | None:
    """Rotary position embeddings rotate the dimensions of a head in pairs, of as many as rotary_pct says. With an odd
    number one dimension has no partner: cosines and queries have different shapes, and every rank stops in its first
    forward pass.

        pos_emb: rotary
        rotary_pct: 0.7
    """
    head = hidden_size // num_attention_heads
    turned = int(head * rotary_pct)
    if pos_emb != "rotary" or turned % 2 == 0:
        return None
    what = f"rotary_pct ({rotary_pct}) turns {turned} of the {head} dimensions of a head, which must be an even number"
    return refuse(what, f"write rotary_pct: {ceil((turned - 1) / head * 1e4) / 1e4:g}", about=["rotary_pct"])


@check
def sinusoidal_needs_even_hidden_size(hidden_size: int, pos_emb: str) -> Finding | None:
    """Sinusoidal positions are as many sines as cosines, side by side. With an odd hidden_size the vector is one
    number shorter than the word embedding, and adding them fails on every rank in the first forward pass.

        pos_emb: sinusoidal
        hidden_size: 65
        num_attention_heads: 5
    """
    if pos_emb != "sinusoidal" or hidden_size % 2 == 0:
        return None
    return refuse(f"pos_emb: sinusoidal needs an even hidden_size, not {hidden_size}", f"write {hidden_size + 1}")


@check
def unique_layers_divide_num_layers(num_layers: int, num_unique_layers: int | None) -> Finding | None:
    """num_unique_layers layers have weights of their own, and each is used equally often. With a remainder the model
    would have another depth than num_layers says.

        num_unique_layers: 3
    """
    if num_unique_layers is None:
        return None
    if num_unique_layers > num_layers:
        what = f"num_unique_layers ({num_unique_layers}) must be at most num_layers ({num_layers})"
        return refuse(what, "leave num_unique_layers out to give every layer weights of its own")
    return multiple("num_layers", num_layers, "num_unique_layers", num_unique_layers)


@check
def shared_layers_have_one_kind(
    attention_config: Sequence[str], num_layers: int, num_unique_layers: int | None, param_sharing_style: str
) -> Finding | None:
    """Layers that share their weights are one layer, used several times. It can only be of one kind, so a list of
    kinds that gives it several would be followed for the first use and ignored for the others.

        num_unique_layers: 2
        param_sharing_style: spaced
        attention_config: [[["local", "global"], "all"]]
    """
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
    return refuse(
        f"{what} and param_sharing_style ({param_sharing_style})",
        "layers that share weights must be of one kind",
        about=["attention_config", "num_unique_layers", "param_sharing_style"],
    )


@check
def shared_layers_exclude_recompute_with_zero_2(
    num_layers: int,
    num_unique_layers: int | None,
    checkpoint_activations: bool,
    deepspeed_activation_checkpointing: bool,
    zero_optimization__stage: object,
) -> Finding | None:
    """ZeRO stages 2 and 3 reduce a weight's gradient once per backward pass. A shared layer that is recomputed yields
    it once per use, each in a backward pass of its own: gradients are reduced twice or lost, and the loss is wrong.

        num_unique_layers: 2
        checkpoint_activations: true
        zero_optimization: {stage: 3}
    """
    shared = num_unique_layers not in (None, num_layers) and checkpoint_activations
    by_itself = zero_optimization__stage == 3 or (zero_optimization__stage == 2 and deepspeed_activation_checkpointing)
    if not (shared and by_itself):
        return None
    with_what = "deepspeed_activation_checkpointing" if zero_optimization__stage == 2 else "checkpoint_activations"
    what = f"num_unique_layers ({num_unique_layers}) with {with_what} does not work with ZeRO stage"
    return refuse(
        f"{what} {zero_optimization__stage}",
        f"remove {with_what}, or write a lower stage",
        about=["num_unique_layers", with_what, "zero_optimization.stage"],
    )


@check
def post_layernorm_residual_excludes_gpt_j_residual(
    apply_residual_connection_post_layernorm: bool, gpt_j_residual: bool
) -> Finding | None:
    """With gpt_j_residual, attention and MLP stand side by side and share one residual, which cannot come out of the
    two norms that apply_residual_connection_post_layernorm takes it from. One of the two would be ignored.

        apply_residual_connection_post_layernorm: true
        gpt_j_residual: true
    """
    if not (apply_residual_connection_post_layernorm and gpt_j_residual):
        return None
    what = "apply_residual_connection_post_layernorm and gpt_j_residual exclude each other"
    return refuse(what, "remove one of the two")


@check
def onnx_safe_excludes_bias_gelu_fusion(onnx_safe: bool, bias_gelu_fusion: bool) -> Finding | None:
    """onnx_safe asks for a model that can be exported, and the fused kernel of bias_gelu_fusion cannot: the export
    would fail after the training.

        onnx_safe: true
        bias_gelu_fusion: true
    """
    if not (onnx_safe and bias_gelu_fusion):
        return None
    return refuse("onnx_safe and bias_gelu_fusion exclude each other", "remove one of the two")


@check
def gmlp_excludes_partition_activations(attention_config: Sequence[str], partition_activations: bool) -> Finding | None:
    """A gMLP block mixes tokens along the sequence, the dimension along which partitioned activations are divided
    between tensor parallel ranks. Recomputed from one partition, its gradients would be wrong.

        partition_activations: true
        attention_config: [[["gmlp"], "all"]]
    """
    if not partition_activations or not {"gmlp", "amlp"} & set(attention_config):
        return None
    what = "gmlp and amlp layers exclude partition_activations"
    return refuse(what, "write partition_activations: false", about=["partition_activations", "attention_config"])

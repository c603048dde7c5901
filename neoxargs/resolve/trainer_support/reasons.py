"""Why train.py does not support a parameter or a type of layer, if there is more to say than that it is not built."""

from __future__ import annotations

_GMLP = (
    "GPT-NeoX's gMLP has no residual connection and starts only if a micro batch has at least seq_length samples, so "
    "no model of this kind was trained with it"
)
#: Type of a layer in attention_config -> the reason.
LAYER_REASONS = {
    "gmlp": _GMLP,
    "amlp": _GMLP,
    "mamba": (
        "GPT-NeoX's Mamba supports neither bfloat16 nor evaluation, and with several tensor parallel ranks it computes "
        "a different function than with one"
    ),
    "rwkv": (
        "GPT-NeoX's RWKV passes its state between the samples of a batch instead of between tokens, so no token "
        "depends on earlier ones"
    ),
}
#: Name of a parameter, or the beginning of several names that end in `*` -> the reason.
REASONS = {
    "te_fp8_mha": "GPT-NeoX's code for fp8 refers to names that do not exist, so it can never have run",
    "use_bnb_optimizer": (
        "bitsandbytes' optimizer runs only on CUDA, and with it GPT-NeoX adds a norm to the position embedding, which "
        "changes the model"
    ),
    "serve_model_weights": (
        "GPT-NeoX's server shares GPU memory with a particular fork of vLLM on the same machine, and sends pickles, "
        "which can run any code"
    ),
    "amp.enabled": "it needs NVIDIA's Apex; the fp16 and bf16 sections replace Apex's mixed precision",
    "elasticity.enabled": "DeepSpeed then computes the batch size itself and rejects the one that train.py passes",
    "elastic_training": "DeepSpeed then computes the batch size itself and rejects the one that train.py passes",
    "progressive_layer_drop.enabled": (
        "DeepSpeed passes the fraction of layers as an argument that neither deepy's nor GPT-NeoX's forward pass has"
    ),
    "compression_training.*": (
        "DeepSpeed compresses a model only if the script calls init_compression; GPT-NeoX does not call it either"
    ),
    "data_efficiency.*": (
        "it works only with DeepSpeed's own data loader and with models that the script converts; GPT-NeoX does not "
        "support it either"
    ),
    "zero_optimization.legacy_stage1": "DeepSpeed no longer has this option",
    "deepspeed": "train.py trains only with DeepSpeed's engine",
}


def reason(name: str) -> str:
    """Return why a parameter is not supported; "" if the only reason is that it is not built yet."""
    wild = (why for key, why in REASONS.items() if key.endswith("*") and name.startswith(key[:-1]))
    return REASONS.get(name) or next(wild, "")

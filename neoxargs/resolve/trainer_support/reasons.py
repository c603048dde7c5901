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
        "GPT-NeoX's Mamba can neither run in bfloat16 nor evaluate, and with several tensor parallel ranks it computes "
        "another function than with one"
    ),
    "rwkv": (
        "GPT-NeoX's RWKV passes its state from sample to sample of a batch instead of from token to token, so no token "
        "depends on earlier ones"
    ),
}
#: Name of a parameter, or the beginning of several names that end in `*` -> the reason.
REASONS = {
    "te_fp8_mha": "GPT-NeoX's code for fp8 refers to names that do not exist and has never run",
    "use_bnb_optimizer": (
        "bitsandbytes' optimizer runs only on CUDA, and with it GPT-NeoX adds a norm to the position embedding, which "
        "changes the model"
    ),
    "serve_model_weights": (
        "GPT-NeoX's server shares GPU memory with one fork of vLLM on the same machine, and sends pickles, which can "
        "run any code"
    ),
    "amp.enabled": "it needs NVIDIA's Apex, whose mixed precision fp16 and bf16 replace",
    "elasticity.enabled": "DeepSpeed then computes the batch size itself and rejects the one that train.py passes",
    "elastic_training": "DeepSpeed then computes the batch size itself and rejects the one that train.py passes",
    "progressive_layer_drop.enabled": (
        "DeepSpeed passes the fraction of layers to the model's forward pass, which has no such argument, in GPT-NeoX "
        "either"
    ),
    "compression_training.*": (
        "DeepSpeed compresses only a model that a script passes to init_compression, which GPT-NeoX does not do either"
    ),
    "data_efficiency.*": (
        "DeepSpeed applies it only with its own data loader and to models that a script converts, which GPT-NeoX does "
        "not do either"
    ),
    "zero_optimization.legacy_stage1": "DeepSpeed has removed it",
    "deepspeed": "train.py trains with DeepSpeed's engine only",
}


def reason(name: str) -> str:
    """Return why a parameter is not supported; "" if the only reason is that it is not built yet."""
    wild = (why for key, why in REASONS.items() if key.endswith("*") and name.startswith(key[:-1]))
    return REASONS.get(name) or next(wild, "")

"""Small random models of transformers, and how far ours, imported from them, are from theirs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoxargs.config.config import Config
from neoxargs.convert.huggingface import importing, tokens
from neoxargs.convert.huggingface.safetensors import Reader
from neoxargs.data.tokenizer import build_tokenizer
from neoxargs.resolve import resolve
from neoxargs.train.checkpoint import inventory
from neoxargs.train.checkpoint.relayout import VOCABULARY_WEIGHTS
from neoxargs.train.checkpoint.slices import with_rows
from neoxargs.train.checkpoint.weights_by_name import SavedWeights
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.engine import build as engine
from neoxargs.train.generation.generator import Generator, PipelinedModel, PlainModel
from neoxargs.train.micro_batch import MicroBatch
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.rotary import BY_LENGTH, each_length, length_of_same_angles
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights, rank_slice, shards_of, unsharded_shape
from neoxargs.train.process import setup
from neoxargs.train.process.mesh import Mesh
from tests.support.loaded_engine import Loaded, loaded_run
from tests.support.small_gpt import randomised

CPU = torch.device("cpu")
SEQ, NEW, END = 32, 6, 256
SIZES = {
    "vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 44, "max_position_embeddings": SEQ, "bos_token_id": END, "eos_token_id": END,
    "pad_token_id": END, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip
SHORT = {"rope_theta": 500.0, "original_max_position_embeddings": 8}
WINDOWS = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 4, "tie_word_embeddings": True}


class Case(NamedTuple):
    """A model: its class in transformers without `ForCausalLM`, and what it has besides SIZES, or others."""

    family: str
    values: dict[str, Any]
    sizes: dict[str, Any] = SIZES

    @property
    def architecture(self) -> str:
        return "GPT2LMHeadModel" if self.family == "GPT2" else f"{self.family}ForCausalLM"


def _rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, **SHORT, **settings}}


#: Two of a family differ in what the family has variants of.
MODELS: dict[str, Case] = {
    "Llama 3.1": Case("Llama", {**_rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0)}),
    "Llama, YaRN": Case("Llama", {**_rope("yarn", factor=4.0, beta_fast=4.0, beta_slow=1.0), "head_dim": 16}),
    "Llama, linear": Case("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}),
    "Llama, dynamic": Case("Llama", {
        "max_position_embeddings": 16, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 3.0},
    }),
    "Llama, LongRoPE": Case("Llama", {**_rope(
        "longrope", short_factor=[1.0, 1.5, 2.0, 2.0], long_factor=[1.0, 3.0, 5.0, 8.0],
        original_max_position_embeddings=16,
    )}),
    "Mistral-Nemo": Case("Mistral", {"head_dim": 12, "sliding_window": None}),
    "Qwen2": Case("Qwen2", {**WINDOWS, **_rope("yarn", factor=4.0, mscale=0.7, mscale_all_dim=1.2)}),
    "Qwen3": Case("Qwen3", {"head_dim": 12, "tie_word_embeddings": True}),
    "OLMo 2": Case("Olmo2", {}),
    "Gemma 2": Case("Gemma2", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "Gemma 3": Case("Gemma3", {
        **GEMMA, "sliding_window_pattern": 3, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 3000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    }),
    "Mixtral": Case("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.0}),
    "OLMoE": Case("Olmoe", {"num_experts": 8, "num_experts_per_tok": 3}),
    "Mamba": Case("Mamba", {"intermediate_size": 64, "tie_word_embeddings": True}),
    "Mamba, biases": Case("Mamba", {"intermediate_size": 96, "expand": 3, "use_bias": True, "use_conv_bias": False}),
    "Phi-3": Case("Phi3", {"sliding_window": 5, "num_key_value_heads": 4}),
    "Phi-4-mini": Case("Phi3", {
        "original_max_position_embeddings": 16, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 0.5,
            "short_factor": [1.0, 1.5], "long_factor": [1.0, 3.0],
        },
    }),
}  # fmt: skip
OLDER_SIZES = {key: value for key, value in SIZES.items() if key not in ("num_key_value_heads", "rms_norm_eps")}
GPT2_SIZES = {
    "vocab_size": 257, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": SEQ, "bos_token_id": END,
    "eos_token_id": END, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 500.0}
#: Models without a row in docs/huggingface.md.
MORE_MODELS: dict[str, Case] = {
    "GPT-NeoX": Case("GPTNeoX", {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 0.25}}, OLDER_SIZES),
    "GPT-NeoX, in turn": Case("GPTNeoX", {"use_parallel_residual": False}, OLDER_SIZES),
    "GPT-2": Case("GPT2", {"tie_word_embeddings": True}, GPT2_SIZES),
    "GPT-2, untied": Case("GPT2", {"tie_word_embeddings": False, "activation_function": "gelu"}, GPT2_SIZES),
    "Llama": Case("Llama", {}),
    "Llama, biases": Case("Llama", {"attention_bias": True, "mlp_bias": True, "rope_parameters": PLAIN_ROPE}),
    "Mistral": Case("Mistral", {"sliding_window": 4, "head_dim": 12}),
}  # fmt: skip
#: Prompts of 0 to 19 bytes.
PROMPTS = [("to be or not to be: " * 2)[start : 2 * start + 1] for start in range(20)]


class Answer(NamedTuple):
    """Results of transformers' model."""

    logits: Tensor
    """(2, SEQ, vocabulary)"""
    gradients: dict[str, Tensor]
    texts: list[list[int]]
    """Its continuations of PROMPTS."""


def batch() -> tuple[Tensor, Tensor]:
    text = torch.randint(256, (2, SEQ + 1), generator=torch.Generator().manual_seed(1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def made(name: str) -> Any:
    """Return transformers' model with random weights."""
    import transformers

    case = (MORE_MODELS | MODELS)[name]
    kind = f"{case.family}{'Text' if case.family == 'Gemma3' else ''}Config"
    torch.manual_seed(3)
    config = getattr(transformers, kind)(**case.sizes | case.values)
    # Gemma's fused kernel does not bound scores.
    config._attn_implementation = "eager"
    model: Any = randomised(getattr(transformers, case.architecture)(config)).eval()
    model.generation_config.pad_token_id = END
    return model


def answer(model: Any) -> Answer:
    ids, labels = batch()
    logits = model(ids).logits
    loss: Any = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    gradients: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        gradients |= _as_saved(name, parameter.grad, model.config.model_type)
    return Answer(logits.detach(), gradients, [_continued(model, prompt) for prompt in PROMPTS])


#: The names of gate, value and output of an expert in files, where transformers' modules have stacks of experts.
SAVED = {"mixtral": ("block_sparse_moe", "w1", "w3", "w2"), "olmoe": ("mlp", "gate_proj", "up_proj", "down_proj")}


def _as_saved(name: str, tensor: Tensor, kind: str) -> dict[str, Tensor]:
    """Return a tensor of transformers' modules by the names that it has in their files."""
    if kind not in SAVED or ".mlp." not in name:
        return {name: tensor}
    layer, module, (saved, *names) = name.split(".mlp.")[0], name.split(".mlp.")[1], SAVED[kind]
    if module == "gate.weight":
        return {f"{layer}.{saved}.gate.weight": tensor}
    names = names[:2] if module.endswith("gate_up_proj") else names[2:]
    return {
        f"{layer}.{saved}.experts.{expert}.{part}.weight": half
        for expert, matrix in enumerate(tensor)
        for part, half in zip(names, matrix.chunk(len(names)), strict=True)
    }


def _continued(model: Any, prompt: str) -> list[int]:
    ids = torch.tensor([list(prompt.encode())])
    if not prompt:
        ids = torch.tensor([[END]])
    # In Llama's cache, keys keep the angles of the length at which they were added, which no training has seen.
    keeps = model.config.model_type == "llama" and model.config.rope_parameters["rope_type"] in BY_LENGTH
    if keeps:
        model(ids[:, :1])  # a short text resets the frequencies, which the longest one before has left
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, use_cache=not keeps
    )
    new: list[int] = found[0, ids.shape[1] :].tolist()
    return new[: new.index(END)] if END in new else new


def imported(folder: Path, model: Any) -> Path:
    """Write transformers' model to `folder`/theirs, and import it to `folder`/ours."""
    theirs = folder / "theirs"
    model.save_pretrained(theirs, max_shard_size="40KB")
    tokens._byte_level().save(str(theirs / "tokenizer.json"))
    assert importing.main([str(theirs), "--to", str(folder / "ours")]) == 0
    return folder / "ours"


def prepared(folder: Path, names: Iterable[str]) -> None:
    """Import each model to a folder of its name, with its answer."""
    for name in names:
        model = made(name)
        imported(folder / name, model)
        torch.save(answer(model)._asdict(), folder / name / "answer.pt")


def assert_same_weights(folder: Path, wanted: Path, more: frozenset[str] = frozenset()) -> None:
    """Assert that two folders have equal tensors of the same names. more: names that only the first may have."""
    found, others = Reader(folder), Reader(wanted)
    assert found.where.keys() - others.where.keys() <= more
    for key in others.where:
        assert torch.equal(found.read(key), others.read(key)), key


def loaded(ours: Path) -> tuple[GPT, Config]:
    """Return our model without an engine, and its configuration."""
    config = resolve([ours / "model.yml"], gpus=1)
    gpt = GPT(config, engine.vocabulary(config, 257), Weights(), Shared()).eval()
    saved = SavedWeights(ours / "global_step0", inventory.read(ours / "global_step0"))
    with torch.no_grad():
        for key, weight in gpt.named_parameters():
            whole = saved.full_tensor(key)
            weight[: len(whole)].copy_(whole)
    return gpt, config


def greedy(model: PlainModel | PipelinedModel, config: Config, here: Mesh) -> tuple[list[list[int]], list[list[int]]]:
    """Continue PROMPTS greedily, with and without a cache."""
    found = []
    for recompute in (False, True):
        config.generation.maximum_tokens, config.generation.recompute = NEW, recompute
        tokenizer, context = build_tokenizer(config.tokenizer), length_of_same_angles(config)
        generator = Generator(model, tokenizer, config.generation, SEQ, here, 1, context, each_length(config))
        samples = [generator.sample(prompt) for prompt in PROMPTS]
        for one in samples:  # alone: rotary factors may depend on the longest text of a batch
            generator.finish([one])
        found.append([sample.ids for sample in samples])
    return found[0], found[1]


class Difference(NamedTuple):
    """The largest differences between transformers' model and ours; None where a rank does not have the answer."""

    logits: float | None
    gradients: float
    """Of an element, relative to the largest element of its weight's gradient."""
    texts: int
    """Continuations that differ, of those with and without a cache of keys and values."""


def one_process(folder: Path, name: str) -> Difference:
    """Import transformers' model and compare it with ours on one process."""
    model = made(name)
    theirs, (gpt, config) = answer(model), loaded(imported(folder, model))
    ids, labels = batch()
    logits = float((gpt(ids) - theirs.logits).abs().max())
    gpt(ids, labels).backward()
    gradients: dict[str, Any] = {key: weight.grad for key, weight in gpt.named_parameters() if weight.grad is not None}
    wanted = in_our_form(folder / "theirs", theirs.gradients)
    assert wanted.keys() == gradients.keys()
    worst = max(_relative(gradients[key][: len(full)], full, full) for key, full in wanted.items())
    return Difference(logits, worst, _different(greedy(PlainModel(gpt, gpt, CPU), config, Mesh()), theirs))


def _different(found: tuple[list[list[int]], list[list[int]]], theirs: Answer) -> int:
    return sum(ours != text for texts in found for ours, text in zip(texts, theirs.texts, strict=True))


def _relative(found: Tensor, wanted: Tensor, full: Tensor) -> float:
    return float((found - wanted).abs().max() / full.abs().max())


def in_our_form(source: Path, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of transformers' model in a folder, such as its gradients, under our names and in our shapes."""
    read = importing.Import(source)
    by_name = {read._name_in_family(key): tensor for key, tensor in theirs.items()}
    return {piece.ours: piece.form.to_ours([by_name[key] for key in piece.theirs], read.sizes) for piece in read.pieces}


def descent(rate: float, **more: Any) -> dict[str, Any]:
    """Return the settings of plain gradient descent, and more."""
    return {
        "optimizer": f"{{type: SGD, params: {{lr: {rate}}}}}", "lr_decay_style": "constant", "warmup": 0.0,
        "gradient_clipping": 0.0, "weight_decay": 0.0, "train_micro_batch_size_per_gpu": 2, **more,
    }  # fmt: skip


#: Steps of gradient descent with this rate change weights by so much times their gradient, exactly.
RATE = 16.0


def on_layout(folder: Path, sizes: dict[str, Any], process: setup.Process) -> Difference:
    """Compare the imported model on this rank of a layout. Runs in every rank, after `setup.start`."""
    theirs = Answer(**torch.load(folder / "answer.pt"))
    run = loaded_run(folder / "ours" / "model.yml", descent(RATE, **sizes, save=folder / "saved"), process)
    off, texts = forward(run, theirs)
    return Difference(off, _descended(run.built, in_our_form(folder / "theirs", theirs.gradients)), texts)


def forward(run: Loaded, theirs: Answer) -> tuple[float | None, int]:
    """Return the largest difference of the logits, None on a rank without them, and how many continuations differ."""
    logits = run.logits(batch()[0])
    off = None if logits is None else float((logits - theirs.logits.flatten(0, 1)).abs().max())
    return off, _different(greedy(run.model(), run.config, run.mesh), theirs)


def _descended(built: Any, wanted: dict[str, Tensor]) -> float:
    """Take a step of gradient descent; return how far the changes of this rank's weights are from these gradients."""
    built.deepspeed.train()
    weights = named_weights(built.deepspeed.module)
    before = {key: weight.detach().clone() for key, weight in weights.items()}
    built.train_step(itertools.repeat(MicroBatch(*batch())) if built.reads_data else None)
    worst = 0.0
    for key, weight in weights.items():
        own = own_shard(key, weight, wanted[key])
        worst = max(worst, _relative((before[key] - weight.detach()) / RATE, own, wanted[key]))
    return worst


def own_shard(key: str, weight: nn.Parameter, full: Tensor) -> Tensor:
    """Return this rank's shard of a full tensor, with the rows that pad a vocabulary."""
    if key in VOCABULARY_WEIGHTS:
        full = with_rows(full, unsharded_shape(weight)[0])
    return reduce(rank_slice, shards_of(weight), full)

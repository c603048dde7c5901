"""transformers' models come in, agree with ours on every layout, and go out again as they were."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from neoxargs.convert.huggingface import exporting, importing, tokens
from neoxargs.convert.huggingface.safetensors import Reader
from neoxargs.data.tokenizer import build_tokenizer
from neoxargs.facts.position import Position
from neoxargs.resolve import resolve
from neoxargs.train.checkpoint import inventory
from neoxargs.train.checkpoint.weights_by_name import SavedWeights
from neoxargs.train.engine import build as engine
from neoxargs.train.generation.generator import Generator, PipelinedModel, PlainModel
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.process import mesh, setup
from neoxargs.train.process.mesh import Mesh
from tests.support.huggingface import NEW, PROMPTS, SEQ, Answer, answer, batch
from tests.support.loaded_engine import loaded_run
from tests.support.ranks import run_ranks
from tests.support.small_gpt import randomised

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 44,
    "max_position_embeddings": SEQ, "bos_token_id": 256, "eos_token_id": 256,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
ROPE = {"rope_type": "default", "rope_theta": 500.0}
#: Architecture -> its configuration.
MODELS: dict[str, dict[str, Any]] = {
    "GPTNeoXForCausalLM": {**SIZES, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.25}},
    "LlamaForCausalLM": {**GROUPED, "attention_bias": True, "mlp_bias": True, "rope_parameters": ROPE},
    "MistralForCausalLM": {**GROUPED, "sliding_window": 4, "head_dim": 12},
    "GPT2LMHeadModel": {
        "vocab_size": 257, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": SEQ, "bos_token_id": 256,
        "eos_token_id": 256,
    },
}  # fmt: skip
CLASSES = {"GPT2LMHeadModel": "GPT2Config"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`theirs/NAME`, written by transformers, and `ours/NAME`, imported from it."""
    os.environ["USE_TF"] = "0"
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("huggingface")
    for name, values in MODELS.items():
        torch.manual_seed(3)
        kind = CLASSES.get(name, name.replace("ForCausalLM", "Config"))
        model = randomised(getattr(transformers, name)(getattr(transformers, kind)(**values))).eval()
        model.generation_config.pad_token_id = 256
        theirs = folder / "theirs" / name
        model.save_pretrained(theirs, max_shard_size="40KB")
        tokens._byte_level().save(str(theirs / "tokenizer.json"))
        torch.save(answer(model)._asdict(), folder / f"{name}.pt")
        assert importing.main([str(theirs), "--to", str(folder / "ours" / name)]) == 0
    return folder


def expected(root: Path, name: str) -> Answer:
    return Answer(**torch.load(root / f"{name}.pt"))


def loaded(root: Path, name: str) -> tuple[GPT, Any]:
    """Return our model without an engine, and its configuration."""
    config = resolve([root / "ours" / name / "model.yml"], gpus=1)
    found = engine.vocabulary(config, 257)
    gpt = GPT(config, found, Weights(), Shared()).eval()
    folder = root / "ours" / name / "global_step0"
    saved = SavedWeights(folder, inventory.read(folder))
    with torch.no_grad():
        for key, weight in gpt.named_parameters():
            whole = saved.full_tensor(key)
            weight[: len(whole)].copy_(whole)
    return gpt, config


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients(root: Path, name: str) -> None:
    (gpt, _), (logits, gradients, _), (ids, labels) = loaded(root, name), expected(root, name), batch()
    torch.testing.assert_close(gpt(ids), logits, rtol=0, atol=1e-4)
    gpt(ids, labels).backward()
    source = importing.Import(root / "theirs" / name)
    by_name = {source._name_in_family(key): gradient for key, gradient in gradients.items()}
    ours = dict(gpt.named_parameters())
    assert {piece.ours for piece in source.pieces} == set(ours)
    for piece in source.pieces:
        wanted = piece.form.to_ours([by_name[key] for key in piece.theirs], source.sizes)
        found = ours[piece.ours].grad[: len(wanted)]
        assert (found - wanted).norm() < 1e-3 * wanted.norm(), piece.ours


def greedy(model: PlainModel | PipelinedModel, config: Any, here: Mesh) -> tuple[list[list[int]], list[list[int]]]:
    """Continue PROMPTS greedily, with and without a cache."""
    found = []
    for recompute in (False, True):
        config.generation.maximum_tokens, config.generation.recompute = NEW, recompute
        tokenizer = build_tokenizer(config.tokenizer)
        generator = Generator(model, tokenizer, config.generation, SEQ, here, seed=1)
        samples = [generator.sample(prompt) for prompt in PROMPTS]
        generator.finish(samples)
        found.append([sample.ids for sample in samples])
    return found[0], found[1]


@pytest.mark.parametrize("name", MODELS)
def test_greedy_text_is_that_of_transformers(root: Path, name: str) -> None:
    gpt, config = loaded(root, name)
    for texts in greedy(PlainModel(gpt, gpt, CPU), config, Mesh()):
        assert texts == expected(root, name).texts


def each_layout(root: str, layouts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return for every layout and model the error of the logits, and whether the texts are equal."""
    process, found = setup.start("gloo", seed=1), {}
    for layout, sizes in layouts.items():
        for name in MODELS:
            found[f"{layout} {name}"] = on_this_rank(Path(root), name, sizes, Path(root, layout, name), process)
            mesh.destroy_groups()
    return found


def on_this_rank(root: Path, name: str, sizes: dict[str, Any], save: Path, process: Any) -> Any:
    run = loaded_run(root / "ours" / name / "model.yml", {**sizes, "save": save}, process)
    run.checkpoints.save(Position(1, 1))
    if "precision" in sizes:
        return None, [True, True]
    wanted, (ids, _) = expected(root, name), batch()
    logits = run.logits(ids)
    off = None if logits is None else float((logits - wanted.logits.flatten(0, 1)).abs().max())
    return off, [texts == wanted.texts for texts in greedy(run.model(), run.config, run.mesh)]


LAYOUTS = {
    2: {
        "tp2": {"model_parallel_size": 2},
        "pp2": {"pipe_parallel_size": 2},
        "zero3": {"zero_optimization.stage": 3},
        "half": {"model_parallel_size": 2, "precision": "bfloat16"},
    },
    4: {"tp2 pp2": {"model_parallel_size": 2, "pipe_parallel_size": 2}},
}


@pytest.mark.slow
@pytest.mark.parametrize("world", LAYOUTS)
def test_every_layout_imports_and_exports_the_same_model(root: Path, world: int) -> None:
    for ranks in run_ranks(each_layout, world, str(root), LAYOUTS[world], timeout=280):
        for what, (off, same) in ranks.items():
            assert off is None or off < 1e-4, what
            assert same == [True, True], what
    for layout in LAYOUTS[world]:
        for name in MODELS:
            # Of the half precision the optimizer's weights, which are the whole ones.
            more = ["--set", f"load={root / layout / name}", "--dtype", "float32"]
            again = exported(root, name, f"out {layout} {name}", *more)
            assert_same_folder(again, root / "theirs" / name)


def exported(root: Path, name: str, to: str, *more: str) -> Path:
    folder = root / to
    assert exporting.main([str(root / "ours" / name / "model.yml"), "--to", str(folder), *more]) == 0
    return folder


def assert_same_folder(ours: Path, theirs: Path) -> None:
    """Exactly the same weights, under the same names."""
    written, before = Reader(ours), Reader(theirs)
    assert set(written.where) == set(before.where)
    for key in before.where:
        assert torch.equal(written.read(key), before.read(key)), key

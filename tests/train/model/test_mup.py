"""muP: what a layer gives stays as large when the model gets wider, and wide layers start and step accordingly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from neoxargs.base.problems import Problems
from neoxargs.facts.model import REWARD_HEAD
from neoxargs.train import coord_check
from neoxargs.train.deepspeed.weight_names import named_weights
from neoxargs.train.model import mup
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.output import RewardHead
from neoxargs.train.model.shared import Shared
from neoxargs.train.optim import build as optimizer
from neoxargs.train.parallel.layers import Weights
from neoxargs.train.parallel.widths import Widths
from tests.support.layouts import PIPE, TENSOR, TWO_STAGES
from tests.support.ranks import run_ranks
from tests.support.refused import refused
from tests.support.small_gpt import VOCABULARY, batch, small
from tests.support.snapshots import pinned
from tests.support.trials import Trial, staged, started

CPU = torch.device("cpu")
NARROW = {
    "hidden_size": 64, "intermediate_size": 256, "optimizer.params.lr": 2e-2, "init_method_std": 0.1,
    "no_weight_tying": True, "optimizer.type": "Adam",
}  # fmt: skip


def grown(changes: dict[str, Any]) -> dict[str, float]:
    """How many times as large each layer's output is at hidden size 256 than at 64, after the last step."""
    found = coord_check.measure(small(**NARROW | changes), CPU)
    assert sorted(found) == [64, 128, 256]
    return {layer: found[256][layer][-1] / found[64][layer][-1] for layer in found[64]}


@pytest.mark.parametrize("kind", ["Adam", "MuAdamW"])
def test_outputs_stay_as_large(kind: str) -> None:
    changes = {"optimizer.type": kind}
    with_mup, without = grown(changes | {"use_mup": True}), grown(changes)
    inside = [layer for layer in with_mup if layer != "positions"]
    assert all(0.5 < with_mup[layer] < 1.6 for layer in inside), with_mup
    assert without["layers.1"] > 5, without
    assert without["output"] > 1.8, without


@pytest.mark.parametrize(
    ("kind", "sizes"), [("mamba", {"mamba_inner_size": 64}), ("rwkv", {"dim_att": 64, "head_size": 16, "ffn_dim": 96})]
)
def test_recurrent_layers_grow_and_are_measured(kind: str, sizes: dict[str, int]) -> None:
    config = small(**{**NARROW, **sizes, "attention_config": [kind, "global"]})
    wide = coord_check.widened(config, 2)
    assert all(wide.get(name) == 2 * size for name, size in sizes.items() if name != "head_size")
    assert [*coord_check.measure(config, CPU)[256]] == ["positions", "layers.0", "layers.1.attention", "layers.1",
                                                        "output"]  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The base shapes of `small()`."""
    path = tmp_path_factory.mktemp("mup") / "new" / "base.yml"
    assert coord_check.save_base_shapes(small(base_shapes_file=str(path))) == path
    return str(path)


def wide(file: str, **changes: Any) -> dict[str, Any]:
    """Twice as wide in the hidden size, three times in the feed-forward part."""
    sizes = {"hidden_size": 64, "intermediate_size": 384, "use_mup": True, "base_shapes_file": file}
    return sizes | changes


def test_base_shapes(file: str) -> None:
    base = yaml.safe_load(Path(file).read_text())
    assert set(base) == {name for name, _ in GPT(small(), VOCABULARY, Weights(), Shared()).named_parameters()}
    assert base["embedding.word_embeddings.weight"] == base["positions.table"] == [None, 32]
    assert base["layers.1.mlp.dense_4h_to_h.weight"] == [32, 128]
    assert base["layers.0.attention.query_key_value.bias"] == [96]


def test_initial_weights(file: str) -> None:
    config = small(**wide(file, mup_init_scale=3.0))
    plain = GPT(small(hidden_size=64, intermediate_size=384), VOCABULARY, Weights(), Shared()).state_dict()
    scaled = GPT(config, VOCABULARY, Weights(widths=mup.widths(config)), Shared()).state_dict()
    factors = {"embedding.word_embeddings.weight": 3, "layers.0.attention.dense.weight": 3 / math.sqrt(2),
               "layers.1.mlp.dense_4h_to_h.weight": 3 / math.sqrt(3)}  # fmt: skip
    for name, factor in factors.items():
        torch.testing.assert_close(scaled[name], plain[name] * factor)
    assert torch.equal(scaled["final_norm.weight"], plain["final_norm.weight"])


def test_factors_on_the_way(file: str) -> None:
    """Attention by the head's width, logits by the growth, embeddings by what is written."""
    options = {"mup_attn_temp": 2.0, "mup_output_temp": 4.0, "mup_embedding_mult": 3.0, "mup_rp_embedding_mult": 5.0}
    config = small(**wide(file, **options))
    model = GPT(config, VOCABULARY, Weights(widths=mup.widths(config)), Shared())
    tokens, _ = batch(2)
    words = model.embedding(tokens)
    torch.testing.assert_close(model.positions(words), 3 * (words + 5 * model.positions.table))
    attention, x = model.layers[0].attention, torch.randn(1, 1, 64)
    assert attention.scale / math.sqrt(16) == pytest.approx(1 / 16 / 2)
    x = torch.randn(2, 16, 64)
    torch.testing.assert_close(
        model.output(x, model.loss.logits), x @ model.embedding.weight[:61].t() / (4 * 2), rtol=1e-5, atol=1e-5
    )


def test_rewards_have_the_factor_of_logits() -> None:
    base = Widths(coord_check.base_shapes(small(train_impl="rm")))
    config = small(train_impl="rm", hidden_size=64, use_mup=True, mup_output_temp=4.0)
    x = torch.randn(2, 16, 64)
    torch.testing.assert_close(RewardHead(config, Weights(widths=base, path=REWARD_HEAD))(x).hidden, x / (4 * 2))


@pytest.mark.parametrize(("kind", "inner", "outer", "norm"), [("Adam", 3.0, 1.0, 1.0), ("MuSGD", 1.5, 0.5, 0.5)])
def test_steps(file: str, kind: str, inner: float, outer: float, norm: float) -> None:
    """Of 384 to 64 numbers (growth 3 to 2), of the embedding and of a norm: what the rate is divided by."""
    config = small(**wide(file, **{"optimizer.type": kind}))
    model, base = GPT(config, VOCABULARY, Weights(), Shared()), mup.widths(config)
    assert base is not None
    groups = mup.divide_groups(
        optimizer.parameter_groups(model, 0.1), named_weights(model), base, mup.normalizes_gradients(config)
    )
    step = {id(weight): group["width_mult"] for group in groups for weight in group["params"]}
    assert len(step) == len(list(model.parameters()))
    assert step[id(model.layers[0].mlp.dense_4h_to_h.weight)] == inner
    assert step[id(model.embedding.weight)] == outer
    assert step[id(model.final_norm.weight)] == norm
    assert all(group["weight_decay"] in (0.0, pytest.approx(0.1 * group["width_mult"])) for group in groups)


def test_files_that_are_none(tmp_path: Path, file: str) -> None:
    other = tmp_path / "other.yml"
    other.write_text("layers.0: 3\n")
    for path, words in (
        (tmp_path / "missing.yml", "cannot be read"),
        (other, "must map weight names to lists of sizes"),
    ):
        with pytest.raises(Problems, match=words):
            mup.widths(small(**wide(str(path))))
    config = small(**wide(file, num_layers=3))
    pinned(refused(lambda: GPT(config, VOCABULARY, Weights(widths=mup.widths(config)), Shared())))


def curves(file: str, trials: dict[str, Trial]) -> dict[str, tuple[list[float], float]]:
    running = started(trials, **wide(file), pos_emb="rpe")
    return {name: ([built.step() for _ in range(4)], built.engine.learning_rate()) for name, built in running}


def test_every_layout(tmp_path: Path) -> None:
    path = str(tmp_path / "base.yml")
    coord_check.save_base_shapes(small(base_shapes_file=path, pos_emb="rpe"))
    two = {
        "tp2": Trial(TENSOR),
        "pp2": Trial(TWO_STAGES),
        "dp2, ZeRO-3": staged(3),
        "dp2, pipeline, ZeRO-1": staged(1, PIPE),
    }
    alone, rate = run_ranks(curves, 1, path, {"plain": Trial()})[0]["plain"]
    assert len(set(alone)) == 4
    for name, (losses, same) in run_ranks(curves, 2, path, two)[0].items():
        assert losses == pytest.approx(alone, abs=1e-3), name
        assert losses[0] == pytest.approx(alone[0], abs=1e-5), name
        assert same == pytest.approx(rate), name

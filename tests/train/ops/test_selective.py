"""Selective recomputation: the gradients are equal bit for bit, less is stored, and only cheap functions run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.ops.selective import Recipe, Selective
from neoxargs.train.parallel.layers import Weights
from tests.support.layouts import RPE
from tests.support.small_gpt import SMALL, VOCABULARY, batch, randomised, small

VARIANTS: dict[str, dict[str, Any]] = {
    "learned positions": {},
    "rotary, parallel residual": {"pos_emb": "rotary", "gpt_j_residual": True},
    "Llama": {"pos_emb": "rotary", "num_kv_heads": 2, "activation": "swiglu", "norm": "rmsnorm"},
    "bilinear, scalenorm": {"activation": "bilinear", "norm": "scalenorm"},
    "one norm for both branches": {"gpt_j_residual": True, "gpt_j_tied": True},
    "norms of queries and keys": {"use_qk_layernorm": True, "num_kv_heads": 2},
    "normed residual": {"apply_residual_connection_post_layernorm": True},
    "rotary documents": {"pos_emb": "rotary", "reset_position_ids": True, "reset_attention_mask": True},
    "rpe": RPE,
    "ALiBi, window": {"pos_emb": "alibi", "sliding_window_width": 3},
    "OLMo 2": {"pos_emb": "rotary", "norm": "rmsnorm", "norm_placement": "after", "use_qk_layernorm": True,
               "qk_layernorm_scope": "all_heads", "num_kv_heads": 2},
    "Gemma 2": {"pos_emb": "rotary", "norm": "rmsnorm", "norm_placement": "both", "apply_layernorm_1p": True,
                "attn_logit_softcapping": 1.0, "final_logit_softcapping": 2.0, "activation": "geglu_tanh",
                "head_dim": 12},
    "dropout": {"hidden_dropout": 0.1, "attention_dropout": 0.1},
}  # fmt: skip
LAYERS = SMALL["num_layers"]
#: Bytes of a layer's input: 2 samples of 16 tokens, 32 wide, in fp32.
STREAM = 2 * 16 * 32 * 4
#: Operations that a selectively recomputed layer does not repeat.
KEPT = ("mm", "addmm", "bmm", "_scaled_dot_product_flash_attention_for_cpu")


def trained(variant: dict[str, Any], selective: bool, layers: int = 0) -> tuple[Tensor, list[Tensor]]:
    """Return loss and gradients. layers: of a group whose inputs alone are kept; 0 means none."""
    model = randomised_model(variant, selective)
    model.checkpoint_layers = layers
    torch.manual_seed(7)
    loss = model(*batch(2))
    loss.backward()
    return loss, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def randomised_model(variant: dict[str, Any], selective: bool) -> GPT:
    torch.manual_seed(0)
    model = randomised(GPT(small(**variant), VOCABULARY, Weights(), Shared(recompute=Selective(selective))))
    assert isinstance(model, GPT)
    return model.train()


@pytest.mark.parametrize("name", VARIANTS)
def test_loss_and_gradients_are_equal_bit_for_bit(name: str) -> None:
    without, selective, full = (trained(VARIANTS[name], *kind) for kind in ((False, 0), (True, 0), (False, 1)))
    for other in (selective, full):
        assert torch.equal(without[0], other[0])
        assert len(without[1]) == len(other[1]) > 10
        assert all(map(torch.equal, without[1], other[1]))


class Counted(TorchDispatchMode):
    """Counts the operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def backward_operations(selective: bool) -> Counter[str]:
    loss = randomised_model(VARIANTS["Llama"], selective)(*batch(2))
    with Counted() as counted:
        loss.backward()
    return counted.calls


def test_products_and_attention_run_once() -> None:
    plain, selective = backward_operations(False), backward_operations(True)
    assert {name: plain[name] for name in KEPT} == {name: selective[name] for name in KEPT}
    assert selective["silu"] == 2 * LAYERS and not plain["silu"]  # for the product with the value, and for the matrix


@contextmanager
def stored(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, int]]:
    """Record the bytes of the storages that a forward pass keeps for the backward pass."""
    kept: dict[int, int] = {}
    alive: list[Tensor] = []

    def note(*tensors: Tensor) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)

    pack = Selective._pack

    def packed(self: Selective, saved: Tensor) -> Any:
        result = pack(self, saved)
        note(*(result.inputs if isinstance(result, Recipe) else (result,)))
        return result

    monkeypatch.setattr(Selective, "_pack", packed)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: note(saved) or saved, lambda saved: saved):
        yield kept


@pytest.mark.parametrize(
    ("name", "dropped"),
    [
        # Two normed streams, and the output of GELU, four times as wide.
        ("learned positions", 2 + 4),
        # Rotated queries and keys replace the output of the product: there is nothing more to drop.
        ("rotary, parallel residual", 2 + 4),
        # The gate's output and its product with the value, 42 wide.
        ("Llama", 2 + 2 * 42 / 32),
    ],
)
def test_what_is_no_longer_stored(name: str, dropped: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {}
    for selective in (False, True):
        model = randomised_model(VARIANTS[name], selective)
        with monkeypatch.context() as patch, stored(patch) as kept:
            model(*batch(2))
        sizes[selective] = sum(kept.values())
    assert sizes[False] - sizes[True] == LAYERS * dropped * STREAM


def test_an_input_that_changes_is_noticed() -> None:
    recompute, x = Selective(True), torch.ones(3, requires_grad=True) * 2
    with recompute.layer():
        y = recompute(torch.exp, x) * torch.ones(3, requires_grad=True)
    x.detach().add_(1)
    with pytest.raises(AssertionError, match="modified in place"):
        y.sum().backward()


def test_nothing_is_recorded_without_gradients() -> None:
    recompute, x = Selective(True), torch.ones(3)
    with torch.no_grad(), recompute.layer():
        recompute(torch.exp, x)
        assert recompute._outputs is None
    recompute(torch.exp, x)
    assert recompute._outputs is None

"""A micro batch by name, and on its way through DeepSpeed's pipeline engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neoxargs.train.batches.loader import collate
from neoxargs.train.losses.cross_entropy import IGNORED
from neoxargs.train.micro_batch import MicroBatch, PipelineLoss, to_pipeline

TOKENS, LABELS = torch.arange(6).view(2, 3), torch.arange(1, 7).view(2, 3)
OPTIONAL: dict[str, Tensor] = {
    "starts": torch.zeros(2, 3, dtype=torch.int64),
    "factor": torch.tensor(0.0),
    "reference": torch.tensor([-1.0, -2.0]),
    "rewards": torch.tensor([0.0, 1.0]),
}


def through_the_pipeline(batch: MicroBatch) -> MicroBatch:
    """Return what the loss is given. As DeepSpeed does, detach each tensor."""
    received = []

    def loss(output: Any, of_loss: MicroBatch) -> Tensor:
        received.append(of_loss)
        return torch.zeros(())

    PipelineLoss(loss)(None, tuple(tensor.detach() for tensor in to_pipeline(batch)[1]))
    return received[0]


@pytest.mark.parametrize(
    "present", [(), ("starts",), ("rewards",), ("factor", "rewards"), ("reference",), (*OPTIONAL,)]
)
def test_a_missing_field_moves_no_other(present: tuple[str, ...]) -> None:
    sent = MicroBatch(TOKENS, LABELS, **{name: OPTIONAL[name] for name in present})
    for name, value in vars(through_the_pipeline(sent)).items():
        original = getattr(sent, name)
        assert (value is None) == (original is None), name
        assert original is None or torch.equal(value, original), name


def test_without_stand_ins_a_field_would_take_the_place_of_another() -> None:
    """The fault of dropping what is None, planted."""
    sent = MicroBatch(TOKENS, LABELS, rewards=OPTIONAL["rewards"])
    dropped = [value for value in vars(sent).values() if value is not None]
    assert MicroBatch(*dropped).starts is sent.rewards
    assert through_the_pipeline(sent).starts is None


def test_the_first_layer_gets_starts_if_there_are_any() -> None:
    assert to_pipeline(MicroBatch(TOKENS, LABELS))[0] is TOKENS
    tokens, starts = to_pipeline(MicroBatch(TOKENS, LABELS, starts=OPTIONAL["starts"]))[0]
    assert tokens is TOKENS and starts is OPTIONAL["starts"]


def test_a_loader_finds_how_to_pin_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.pin_memory import pin_memory

    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor + 1)
    pinned = pin_memory(MicroBatch(TOKENS, LABELS, rewards=OPTIONAL["rewards"]))
    assert torch.equal(pinned.tokens, TOKENS + 1) and torch.equal(pinned.rewards, OPTIONAL["rewards"] + 1)
    assert pinned.reference is None


def test_samples_are_collated_by_name() -> None:
    """A rated sample has no `starts`."""
    sample = {"tokens": TOKENS[0], "labels": LABELS[0], "loss_mask": torch.tensor([0, 1, 1])}
    batch = collate([{**sample, "rewards": torch.tensor(2.0), "reference": torch.tensor(-3.0)}])
    assert batch.starts is None and batch.factor is None
    assert batch.reference is not None and batch.reference.tolist() == [-3.0]
    assert batch.rewards is not None and batch.rewards.tolist() == [2.0]
    assert batch.labels.tolist() == [[IGNORED, 2, 3]]

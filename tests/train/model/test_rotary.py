"""Scaled rotary positions: the angles are those of transformers."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import pytest
import torch

from neoxargs.config.config import Config
from neoxargs.resolve.effects.switched_off import switched_off_by
from neoxargs.train.model import rotary
from neoxargs.train.model.documents import document_lengths, positions_in_document
from neoxargs.train.model.rotary import Rotation, Scaling
from neoxargs.train.ops.tables import Tables
from tests.support.small_gpt import small

LONGEST, BASE = 64, 500
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 3.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "short_factor": [1.0, 1.5, 2.0, 4.0], "long_factor": [1.0, 3.0, 6.0, 9.0], "original_max_position_embeddings": 32,
}  # fmt: skip
#: Name -> `rope_type`, the other settings, and a length of text.
SCALINGS: dict[str, tuple[str, dict[str, Any], int]] = {
    "linear": ("linear", {"factor": 4.0}, LONGEST),
    "dynamic, short": ("dynamic", {"factor": 4.0}, 48),
    "dynamic, long": ("dynamic", {"factor": 4.0}, 100),
    "YaRN": ("yarn", {"factor": 4.0, "original_max_position_embeddings": 16}, LONGEST),
    "YaRN, fewer dimensions": (
        "yarn", {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 3.0, "beta_slow": 0.5}, LONGEST,
    ),
    "YaRN, not rounded": (
        "yarn", {"factor": 4.0, "original_max_position_embeddings": 32, "truncate": False, "mscale": 0.7,
                 "mscale_all_dim": 1.0}, LONGEST,
    ),
    "YaRN, factor given": (
        "yarn", {"factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 1.25}, LONGEST,
    ),
    "Llama 3": ("llama3", {"factor": 8.0, **LLAMA3}, LONGEST),
    "LongRoPE, short": ("longrope", LONGROPE, 32),
    "LongRoPE, long": ("longrope", LONGROPE, 33),
}  # fmt: skip


def _without_its_multiplier(self: Scaling) -> float:
    return 1.0


def _with_one_mscale(self: Scaling) -> float:
    return rotary._mscale(self.factor)


def _of_the_shortest(right: Any) -> Any:
    return lambda frequency, options, rotation, lengths: right(frequency, options, rotation, lengths * 0)


def _of_twice_the_context(right: Any) -> Any:
    return lambda frequency, options, *others: right(frequency, replace(options, context=2 * options.context), *others)


def _unscaled(right: Any) -> Any:
    return lambda frequency, *others: frequency


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.filterwarnings("ignore")
def test_angles_are_those_of_transformers(name: str) -> None:
    assert largest_difference(name) < 1e-4


FAULTS: dict[str, list[Any]] = {
    "dynamic, long": [_of_the_shortest, _of_twice_the_context, _unscaled],
    "linear": [_unscaled], "Llama 3": [_of_twice_the_context, _unscaled], "LongRoPE, long": [_of_the_shortest],
    "YaRN": [_of_twice_the_context, _unscaled, _without_its_multiplier],
    "YaRN, not rounded": [_with_one_mscale], "YaRN, factor given": [_without_its_multiplier],
    "LongRoPE, short": [_unscaled, _without_its_multiplier],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_planted_faults_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten or wrong factor on queries and keys, another original context, the frequencies of another length."""
    for name, faults in FAULTS.items():
        for fault in faults:
            with monkeypatch.context() as patch:
                if fault in (_without_its_multiplier, _with_one_mscale):
                    patch.setattr(Scaling, "multiplier", fault)
                else:
                    kind = SCALINGS[name][0]
                    patch.setitem(rotary._SCALED, kind, fault(rotary._SCALED[kind]))
                assert largest_difference(name) > 1e-2, (name, fault)


def largest_difference(name: str) -> float:
    """Return how far cosines and sines are from those of transformers."""
    os.environ["USE_TF"] = "0"
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind, settings, length = SCALINGS[name]
    rope = {"rope_type": kind, "rope_theta": float(BASE), **settings}
    theirs = transformers.LlamaConfig(
        hidden_size=32, num_attention_heads=4, max_position_embeddings=LONGEST, rope_parameters=rope
    )
    frequency, factor = ROPE_INIT_FUNCTIONS[kind](theirs, "cpu", seq_len=length)
    angle = torch.arange(length).outer(frequency)
    cosine, sine = angles(kind, settings, length)
    return float(max((cosine - angle.cos() * factor).abs().max(), (sine - angle.sin() * factor).abs().max()))


def angles(kind: str, settings: dict[str, Any], length: int) -> tuple[torch.Tensor, ...]:
    return rotation_of(kind, settings).angles(length, length, torch.device("cpu"), Tables())


def config_of(kind: str, settings: dict[str, Any]) -> Config:
    scaling = {f"rope_scaling.{key}": value for key, value in settings.items()}
    return small(
        pos_emb="rotary",
        rotary_emb_base=BASE,
        max_position_embeddings=LONGEST,
        **{"rope_scaling.rope_type": kind},
        **scaling,
    )


def rotation_of(kind: str, settings: dict[str, Any]) -> Rotation:
    rotation = Rotation.of(config_of(kind, settings), 0)
    assert rotation is not None
    return rotation


def test_a_larger_base_divides_the_slowest_frequency_by_the_factor() -> None:
    """bloc97's formula, base x factor ** (d / (d - 2)): transformers' `dynamic` at twice its longest text."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "dynamic", "rope_theta": float(BASE), "factor": 3.0}
    theirs = LlamaConfig(hidden_size=32, num_attention_heads=4, max_position_embeddings=LONGEST, rope_parameters=rope)
    frequency, _ = ROPE_INIT_FUNCTIONS["dynamic"](theirs, "cpu", seq_len=2 * LONGEST)
    cosine, sine = angles("ntk", {"factor": 4.0}, LONGEST)
    torch.testing.assert_close(cosine, torch.arange(LONGEST).outer(frequency).cos(), rtol=0, atol=1e-4)
    assert math.isclose(math.asin(float(sine[1, -1])), BASE**-0.75 / 4, rel_tol=1e-4)


@pytest.mark.parametrize("name", ["dynamic, long", "LongRoPE, long", "YaRN"])
def test_in_each_document_angles_are_those_of_its_length(name: str) -> None:
    kind, settings, _ = SCALINGS[name]
    lengths = (20, 40, 70)
    starts_BS = torch.cat([torch.full((length,), sum(lengths[:i])) for i, length in enumerate(lengths)]).unsqueeze(0)
    rotation = rotation_of(kind, settings)
    found = rotation.angles_at(positions_in_document(starts_BS), document_lengths(starts_BS))
    for number, ours in enumerate(found):
        alone = [angles(kind, settings, length)[number][:length] for length in lengths]
        torch.testing.assert_close(ours[0], torch.cat(alone), rtol=0, atol=0)


def test_of_lengths_that_grow_one_table_is_kept() -> None:
    rotation, tables = rotation_of("dynamic", {"factor": 4.0}), Tables()
    for length in (10, LONGEST, LONGEST + 1, 100, 10):
        found = rotation.angles(length, length, torch.device("cpu"), tables)
        torch.testing.assert_close(found, rotation.angles(length, length, torch.device("cpu"), Tables()))
    assert len(tables._kept) == 1


def test_layers_with_a_window_have_a_base_of_their_own() -> None:
    config = small(
        pos_emb="rotary", sliding_window_width=3, window_attn_skip_freq=2, rope_local_base_freq=100,
        **{"rope_scaling.rope_type": "linear", "rope_scaling.factor": 4.0},
    )  # fmt: skip
    local, full = Rotation.of(config, 0), Rotation.of(config, 1)
    assert local == Rotation(8, 100) and full is not None and full.scaling is not None
    assert (full.base, full.scaling.factor) == (10000, 4.0)


#: Settings besides those of SCALINGS, which change the angles of the kinds that have them.
OTHERS: dict[str, dict[str, Any]] = {
    "low_freq_factor": {"low_freq_factor": 0.2},
    "high_freq_factor": {"high_freq_factor": 9.0},
    "beta_fast": {"beta_fast": 2.0},
    "beta_slow": {"beta_slow": 0.1},
    "truncate": {"truncate": False},
    "mscale": {"mscale": 0.7, "mscale_all_dim": 1.0},
    "short_factor": {"short_factor": [3.0] * 4, "long_factor": [5.0] * 4},
    "original_max_position_embeddings": {"original_max_position_embeddings": 20},
}


@pytest.mark.parametrize("kind", ["linear", "ntk", "dynamic", "yarn", "llama3", "longrope"])
def test_what_is_said_to_have_no_effect_has_none(kind: str) -> None:
    given = {"longrope": LONGROPE, "llama3": {"factor": 8.0, **LLAMA3}}.get(kind, {"factor": 4.0})
    for name, changes in OTHERS.items():
        settings = {**given, **changes}
        told = switched_off_by(config_of(kind, settings), f"rope_scaling.{name}") is not None
        pairs = zip(angles(kind, settings, 100), angles(kind, given, 100), strict=True)
        assert told == all(torch.equal(one, other) for one, other in pairs), name

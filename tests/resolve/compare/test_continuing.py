"""The tables of what another value means for a checkpoint name parameters that exist, and each of them once."""

from __future__ import annotations

from neoxargs.registry import REGISTRY
from neoxargs.resolve.compare.continuing import MATTER_WITH, REASONS, level_of


def test_every_name_is_a_parameter_or_a_section_of_the_model() -> None:
    names = [name for _, names in REASONS.values() for name in names.split()]
    assert len(names) == len({*names})
    for name in names:
        known = name[:-1] in REGISTRY.sections if name.endswith(".") else name in REGISTRY.parameters
        assert known, f"{name} is neither a parameter nor a section"
    starts = [start for start in MATTER_WITH if not any(name.startswith(start) for name in REGISTRY.parameters)]
    assert starts == []
    assert {other for other, _ in MATTER_WITH.values()} <= REGISTRY.parameters.keys()


def test_only_what_a_table_excepts_is_free() -> None:
    levels = {name: level_of(parameter) for name, parameter in REGISTRY.parameters.items()}
    weights = {"num_attention_heads", "num_kv_heads", "norm", "activation", "pos_emb", "no_weight_tying", "gpt_j_tied"}
    assert {levels[name] for name in weights} == {"weights"}
    assert levels["rotary_emb_base"] == levels["rope_scaling.factor"] == "adapted"
    assert levels["hidden_dropout"] == "training"
    assert levels["lora.rank"] == levels["tensorboard_dir"] == levels["rms_norm"] == "apart"

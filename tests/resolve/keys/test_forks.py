"""Keys of forks and of other programs are known by name, and answered with what to do."""

import pytest

from neoxargs.registry import REGISTRY
from neoxargs.resolve import Text, draft
from neoxargs.resolve.keys.forks import INSTEAD, PROGRAMS, expanded, whose
from neoxargs.resolve.keys.unknown import NOBODYS

FORKS = ": leave it out, or declare it in a plugin for that fork's script"
KEYS = [key for program in PROGRAMS for key in expanded(program.keys)]


def test_the_table_is_of_names_that_nothing_here_has():
    names = [*REGISTRY.parameters, *REGISTRY.sections, *REGISTRY.renamed]
    assert len(set(KEYS)) > 450
    assert not set(KEYS) & {name.rpartition(".")[2] for name in names}
    assert all(key.isidentifier() for key in KEYS)
    assert not [program.name for program in PROGRAMS if len(set(expanded(program.keys))) < len(expanded(program.keys))]


def test_every_answer_is_about_a_key_of_the_table_and_names_a_parameter():
    assert not set(INSTEAD) - set(KEYS)
    assert not [name for name in INSTEAD.values() if " " not in name and name not in REGISTRY.parameters]


def test_endings_are_put_behind_their_beginning():
    assert expanded("a b_(c d\n e_f) g h_(i)") == ["a", "b_c", "b_d", "b_e_f", "g", "h_i"]


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("hyena_mlp_len", f"it is a parameter of savanna{FORKS}"),
        ("short-conv-L", f"it is a parameter of savanna{FORKS}"),
        ("qkv-slot-num", f"it is a parameter of TokenFormer{FORKS}"),
        ("operator_config", f"it is a parameter of savanna; here it is attention_config: "
         f"{REGISTRY.parameters['attention_config'].brief}"),
        ("load_best_model_at_end", "it is a parameter of Hugging Face's Trainer, which has no counterpart here: leave "
         "it out"),
        ("ga_dataset_impl", f"it is a parameter of Geodesic's GPT-NeoX{FORKS}"),
        ("lora_r", "it is a parameter of axolotl; adapters are not trained here"),
        ("tie-word-embeddings", "it is a parameter of Hugging Face's models; no_weight_tying says the opposite: false "
         "ties them"),
        ("model", NOBODYS),
        ("moe-type", "GPT-NeoX had it from 2024-05-04 to 2025-05-09; take it out"),
    ],
)  # fmt: skip
def test_the_answer(written, hint):
    (problem,) = draft([Text("my.yml", f"{written}: 2\n")]).problems
    assert (problem.what, problem.hint) == (f"{written} is not a parameter", hint)
    assert problem.where.line == 1


def test_nobody_is_named_for_a_word_of_nobodys():
    assert whose("no_such_word") == ""

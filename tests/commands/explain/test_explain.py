"""`deepy explain KEY FILE`: the value in these files and its source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neoxargs.base.problems import Problems
from neoxargs.base.request import Request
from neoxargs.commands.explain.command import FROM_ENVIRONMENT, annotated_yaml, explain, explain_everything
from neoxargs.config.config import Config
from neoxargs.registry import REGISTRY
from neoxargs.resolve import File, complete, draft, provenance, resolve
from tests.support.paths import NEOX_2021, NEOX_HEAD, ROOT, needs_corpus
from tests.support.reference import read
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned

QUICKSTART = "configs/quickstart.yml"


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short path to the file, however long the repository's own: lines are as wide as a terminal."""
    monkeypatch.chdir(ROOT)


def source_of(key: str, *files: str) -> str:
    source: str = json.loads(explain(key, Request(files or [QUICKSTART], gpus=4, as_json=True)))["source"]
    return source.replace(QUICKSTART, "q.yml")


def tree(key: str, *overrides: str) -> list[str]:
    """Return the lines of the tree of inputs below a value."""
    shown = explain(key, Request([QUICKSTART], overrides, gpus=4)).replace(QUICKSTART, "q.yml")
    lines = shown.partition("  source ")[2].partition("  sent as ")[0].splitlines()[1:]
    return [line[16:] for line in lines]


def line(word: str) -> int:
    lines = Path(QUICKSTART).read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.strip().startswith(word))


def test_a_derived_value_shows_its_rule_once_and_its_inputs() -> None:
    shown = explain("intermediate_size", Request([QUICKSTART], gpus=4))
    pinned(source_of("intermediate_size"))
    assert shown.count("4 x hidden_size, or") == 1
    assert tree("intermediate_size") == [f"  hidden_size 256: q.yml:{line('hidden_size')}:1"]


def test_the_inputs_of_a_derived_value_are_traced_to_the_lines_that_set_them() -> None:
    (first, *_) = tree("adam_beta2")
    assert first.startswith("  optimizer.params.betas [0.9, 0.95]: q.yml:")
    text = "{num_layers: 4, hidden_size: 64, num_attention_heads: 4, seq_length: 32, train_iters: 9, batch_size: 1,\n"
    config = complete(draft([File("my.yml", f"{text} mlp_type: llama}}")]), 1)
    hidden_size, factor = provenance.tree("intermediate_size", config).inputs
    assert (hidden_size.name, hidden_size.value, hidden_size.why) == ("hidden_size", 64, "my.yml:1:17")
    assert (factor.value, factor.why) == (8.0, 'derived: `mlp_type: "llama"` (my.yml:2:2)')
    assert [(read.name, read.why) for read in factor.inputs] == [("mlp_type", "my.yml:2:2")]


def test_a_path_is_never_broken(tmp_path: Path) -> None:
    path = tmp_path / ("deep" * 20) / ("a b" * 20) / "my.yml"
    path.parent.mkdir(parents=True)
    path.write_text(Path(QUICKSTART).read_text(encoding="utf-8"))
    shown = explain("intermediate_size", Request([str(path)], gpus=4))
    assert f"{path}:{line('hidden_size')}:1" in shown


def test_a_setting_with_two_names_is_a_default_if_neither_is_set() -> None:
    assert source_of("zero_stage") == "default"
    assert source_of("zero_optimization.stage") == "default"
    answer = json.loads(
        explain("zero_stage", Request([QUICKSTART], ["zero_optimization.stage=1"], gpus=4, as_json=True))
    )
    assert answer["from"] == [{"name": "zero_optimization.stage", "value": 1, "why": "--set zero_optimization.stage=1"}]


def test_auto_is_part_of_the_source(tmp_path: Path) -> None:
    path = tmp_path / "my.yml"
    text = Path(QUICKSTART).read_text(encoding="utf-8").replace("lr: 1.0e-3", "lr: auto")
    path.write_text(f"{text}zero_optimization: {{stage: 1, reduce_bucket_size: auto}}\n")
    assert source_of("zero_optimization.reduce_bucket_size", str(path)).endswith("; auto means hidden_size squared")
    assert source_of("optimizer.params.lr", str(path)).endswith(" (set to `auto`)")


def test_a_value_is_shown_in_the_form_that_its_receiver_gets() -> None:
    def sent(key: str, *overrides: str) -> list[str]:
        answer = json.loads(explain(key, Request([QUICKSTART], overrides, gpus=4, as_json=True)))
        lines: list[str] = answer["sent as"]
        return lines

    assert sent("zero_optimization.stage", "zero_stage=1") == [
        'DeepSpeed\'s JSON: "zero_optimization.stage": 1',
        'each rank: --megatron_config "zero_optimization.stage": 1',
    ]
    assert sent("num_layers")[-1] == "--emit megatron: --num-layers 4"
    assert sent("bias_gelu_fusion")[-1] == "--emit megatron: --no-bias-gelu-fusion"
    assert sent("master_port", "master_port=3000")[0] == "launcher: --master_port 3000"
    pinned(sent("master_port")[0])


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("num-experts", "in GPT-NeoX   since"),
        ("geglu", 'replaced by   activation: "geglu" (for true)'),
        ("one_source_of_data", "about: text_path, data_path, train_data_paths"),
        ("betas", "optimizer.params.betas\n  meaning       Decay of the running means"),
        ("stage", "zero_optimization.stage\n  meaning "),
        (
            "num_epochs",
            "train_epochs\n  alias         num_epochs is another program's name for train_epochs\n"
            "  also          data_efficiency.data_sampling.num_epochs has this name\n"
            "  meaning       Number of passes over the training data, in place of `train_iters`,",
        ),
        ("block_size", "seq_length\n  alias         block_size is another program's name for seq_length\n"),
        ("type", "several parameters are named type:\n  fp16.type "),
        (
            "tensor-model-parallel-size",
            "model_parallel_size\n  alias         tensor_model_parallel_size is another program's",
        ),
        ("num_hidden_layers", "num_layers\n  alias         num_hidden_layers is another program's name for num_layers"),
        ("optimizer.params.lr", "auto          Hugging Face's --learning_rate, default 5e-05"),
        ("zero_optimization.reduce_bucket_size", "resolved at launch: hidden_size squared"),
        ("run_dir", "  origin        deepy\n"),
        ("pos_emb", "  origin        GPT-NeoX\n"),
    ],
)
def test_without_files(key: str, expected: str) -> None:
    assert expected in explain(key, Request([]))
    assert json.loads(explain(key, Request([], as_json=True)))["name"]


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        (
            "hyena_mlp_len",
            "this is a parameter of savanna: remove it, or, if you launch a fork's own script, declare it in a plugin",
        ),
        ("hiden_size", "did you mean hidden_size?"),
    ],
)
def test_an_unknown_key_has_the_hint_of_check(key: str, hint: str) -> None:
    assert refused(explain, key, Request([]))[0].hint.startswith(hint)


def resolves_to_the_same(config: Config, gpus: int) -> None:
    text = annotated_yaml(config)
    again = complete(draft([File("all.yml", text)]), gpus)
    names = [
        p.name
        for p in REGISTRY.parameters.values()
        if not p.replaced_by and p.name not in (*FROM_ENVIRONMENT, "dialect")
    ]
    assert {name: again.get(name) for name in names} == {name: config.get(name) for name in names}
    assert [part for part in text.splitlines() if part.endswith(":")] or config.sections == frozenset()


def test_explain_all_prints_a_configuration_that_resolves_to_the_same() -> None:
    config = resolve([QUICKSTART], gpus=4)
    resolves_to_the_same(config, 4)
    text = explain_everything(Request([QUICKSTART], gpus=4))
    assert f"hidden_size: 256  # {QUICKSTART}:{line('hidden_size')}:1" in text
    assert "intermediate_size: 1024  # derived: 4 x hidden_size" in text
    values = json.loads(explain_everything(Request([QUICKSTART], gpus=4, as_json=True)))["values"]
    assert values["seed"] == {"value": 1234, "source": "default"}


@needs_corpus
def test_explain_all_of_published_configurations_resolves_to_the_same() -> None:
    count = 0
    for case in read("neox_head_translations.json").values():
        files = [NEOX_HEAD / name.removeprefix("configs/") for name in case["files"]]
        gpus = case["num_gpus"] or 8
        try:
            config = resolve(files, gpus=gpus)
        except Problems:
            continue
        resolves_to_the_same(config, gpus)
        count += 1
    assert count > 50
    resolves_to_the_same(resolve([NEOX_2021 / "ds_pretrain_gpt2.yml", NEOX_2021 / "local_setup.yml"], gpus=8), 8)


def test_the_source_of_the_batch_size_is_its_equation() -> None:
    micro, steps = line("train_micro_batch_size_per_gpu"), line("gradient_accumulation_steps")
    expected = f"derived: 8 samples = micro batch 2 (q.yml:{micro}:1) x accumulation 4 (q.yml:{steps}:1) x data 1"
    assert source_of("train_batch_size") == expected


def test_a_default_that_depends_on_the_dialect_names_the_other_default(tmp_path: Path) -> None:
    text = Path(QUICKSTART).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("attention_dropout")]
    path = tmp_path / "my.yml"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert source_of("attention_dropout", str(path)) == "neox-2026's default; neox-2021 has 0.1"
    path.write_text("\n".join(lines).replace("neox-2026", "neox-2021"), encoding="utf-8")
    assert source_of("attention_dropout", str(path)) == "neox-2021's default; neox-2026 has 0.0"
    path.write_text("\n".join(lines).replace("neox-2026", "neox-2021").replace("gradient_clipping: 1.0", ""), "utf-8")
    assert source_of("gradient_clipping", str(path)) == "neox-2021's default; neox-2026 has 1.0"


def test_what_a_parameter_affects() -> None:
    def affects(key: str) -> str:
        effect: str = json.loads(explain(key, Request([], as_json=True)))["affects"]
        return effect

    assert affects("num-layers") == "model"
    pinned(affects("master_port"))
    assert affects("mask-prob") == "nothing: only BERT, ICT and REALM read it"
    pinned(affects("managed_gradient_accumulation"))


def test_the_kernels_of_attention_are_those_of_the_files() -> None:
    def here(*overrides: str) -> str:
        request = Request([QUICKSTART], overrides, gpus=4, as_json=True)
        return str(json.loads(explain("attention_backend", request))["here"])

    assert "flex in" in here("sliding_window_width=8", "attention_dropout=0")
    assert "sdpa in" in here()


def test_a_refused_parameter_shows_the_reason_and_what_to_write_instead() -> None:
    described = json.loads(explain("managed_gradient_accumulation", Request([], as_json=True)))
    assert described["refused"].startswith("the training script would have to count micro batches")
    assert described["instead"].endswith("gradient_accumulation_steps")
    kinds = json.loads(explain("attention_config", Request([], as_json=True)))
    assert kinds["refused"].startswith("gmlp or amlp: GPT-NeoX's gMLP has no residual")
    assert "refused" not in json.loads(explain("num_layers", Request([], as_json=True)))


def test_a_section_shows_what_is_in_the_files() -> None:
    shown = explain("optimizer.params", Request([QUICKSTART], gpus=4)).partition("values of optimizer.params:")[2]
    assert f"  lr 0.001 ({QUICKSTART}:{line('params')}:12)" in shown
    assert "amsgrad" not in shown
    values = json.loads(explain("optimizer.params", Request([QUICKSTART], gpus=4, as_json=True)))["values"]
    assert values["optimizer.params.betas"] == [0.9, 0.95]
    assert "values of" not in explain("optimizer.params", Request([]))
    pinned(explain("amp", Request([QUICKSTART], gpus=4)), "amp: all")


def test_a_word_finds_the_parameters_with_it_in_their_names() -> None:
    question = explain("how do I use lora", Request([]))
    assert "lora.rank " in question and "wandb" not in question
    lines = explain("bucket", Request([])).splitlines()
    pinned(lines[0])
    assert lines[1].split()[:4] == ["zero_reduce_bucket_size", "The", "same", "as"]
    assert all("bucket" in line.split()[0] for line in lines[1:])
    many = explain("zero", Request([])).splitlines()
    assert len(many) == 1 + 15 + 1 and many[1].split() == ["zero_optimization", "a", "section"]
    found = json.loads(explain("zero", Request([], as_json=True)))["found"]
    assert many[-1] == f"  and {len(found) - 15} more, listed in docs/parameters.md"


@pytest.mark.parametrize("word", ["ring", "a2a", "p2p", "a2a+p2p", "Ulysses"])
def test_a_choice_finds_its_parameter(word: str) -> None:
    assert explain(word, Request([])).splitlines()[1].split()[0] == "context_parallel_style"


def test_a_flag_of_megatron_is_explained() -> None:
    assert explain("cp-comm-type", Request([])).startswith("context_parallel_style\n")


def test_a_word_in_no_name_is_searched_in_descriptions() -> None:
    assert "  char_level_ppl " in explain("perplexity", Request([]))


@pytest.mark.parametrize(("key", "files"), [
    (QUICKSTART, []), ("my.json", ["seed"]), ("zzzz", []), ("num_layer", []), ("rotary-dims-evn", []),
])  # fmt: skip
def test_an_unknown_name_is_a_problem_with_a_hint(key: str, files: list[str]) -> None:
    pinned(refused(explain, key, Request(files)))


def test_the_words_of_a_name_are_suggested_as_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    (problem,) = refused(explain, "learning", Request(["rate"]))
    pinned(problem)
    assert "lr" in explain("learning_rate", Request([])).split()
    assert explain("learning rate", Request([])) == explain("learning_rate", Request([]))
    assert ids(refused(explain, "lr", Request(["nowhere"]))) == ["file-missing"]

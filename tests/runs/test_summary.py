"""The summary before a run, pinned as text: `UPDATE=1 pytest tests/runs/test_summary.py` rewrites it."""

import os
from pathlib import Path

import pytest

from neoxargs.base.record import replace
from neoxargs.facts.description import describe
from neoxargs.files.token_files.sources import with_text
from neoxargs.hosts.hosts import Resources, assumed_resources
from neoxargs.resolve import File, complete, draft
from neoxargs.runs import summary
from neoxargs.runs.run_spec import RunSpec

SMALL = """\
dialect: neox-2026
num_layers: 4
hidden_size: 256
num_attention_heads: 8
seq_length: 256
max_position_embeddings: 256
model_parallel_size: 2
pipe_parallel_size: 2
train_micro_batch_size_per_gpu: 4
gradient_accumulation_steps: 4
text_path: python-stdlib
tokenizer_type: ByteLevelTokenizer
train_iters: 100
save: runs/small
checkpoint_factor: 50
"""
LARGE = """\
num_layers: 44
hidden_size: 6144
num_attention_heads: 64
seq_length: 2048
max_position_embeddings: 2048
model_parallel_size: 2
pipe_parallel_size: 4
train_batch_size: 1536
train_micro_batch_size_per_gpu: 4
data_path: data/pile/train_text_document
fp16: {enabled: true}
zero_optimization: {stage: 1}
optimizer: {type: Adam, params: {lr: 0.97e-4, betas: [0.9, 0.95]}}
lr_decay_style: cosine
train_iters: 150000
load: checkpoints/large
"""
PHASES = """\
dialect: neox-2026
num_layers: 2
hidden_size: 64
num_attention_heads: 4
seq_length: 32
train_micro_batch_size_per_gpu: 2
train_batch_size: 16
train_iters: 100
train_data_paths: [web, code]
valid_data_paths: [v]
test_data_paths: [v]
tokenizer_type: ByteLevelTokenizer
train_data_mixture: [{until: 50%, weights: [3, 1]}, {style: linear, until: 80%, weights: [1, 1]}, {temperature: 2}]
optimizer: {type: Muon, params: {lr: 0.001, muon_lr: 0.02, adam_lr: 0.0003}}
lr_schedule: [{style: linear, until: 10, from: 0, to: 0.001}, {style: cosine, to: 0.0001}]
seq_length_schedule: [{until: 20, length: 16}, {length: 32}]
batch_size_schedule: [{until: 20, size: 8}, {size: 16}]
precision: bfloat16
"""
SNAPSHOTS = Path(__file__).parent / "snapshots"
CPU = Resources({"localhost": [0, 1, 2, 3]}, "cpu")


def spec(text: str, resources: Resources, overrides: tuple[str, ...] = ()) -> RunSpec:
    config = complete(draft([File("configs/my.yml", text)], overrides), resources.gpus)
    return RunSpec(with_text(config), resources)


def same_as_before(name: str, text: str) -> bool:
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE"):
        SNAPSHOTS.mkdir(exist_ok=True)
        path.write_text(text + "\n")
    return path.read_text() == text + "\n"


def test_a_small_run_on_a_cpu():
    shown = summary.to_text(spec(SMALL, CPU, ("lr=0.002", "weight_decay=0.01")), 80)
    assert same_as_before("summary_small", shown)


def test_phases_are_in_the_rows_of_what_they_change():
    shown = summary.to_text(spec(PHASES, CPU))
    assert same_as_before("summary_phases", shown)
    assert "train_data_weights" not in shown


def test_a_large_run_on_many_machines():
    hosts = {f"node{number}": list(range(8)) for number in range(12)}
    shown = summary.to_text(spec(LARGE, Resources(hosts, "cuda", remote=True)), 80)
    assert same_as_before("summary_large", shown)


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize(
    ("text", "resources"), [(SMALL, CPU), (LARGE, assumed_resources(96)), (LARGE, assumed_resources(768))]
)
def test_no_line_is_wider_than_the_terminal(text, resources, width):
    made = spec(text, resources) if resources.gpus < 768 else spec(text.replace("1536", "1536000"), resources)
    assert max(map(len, summary.to_text(made, width).splitlines())) <= width


def test_every_derived_value_that_repeats_nothing_is_listed():
    shown = summary.to_text(spec(SMALL, CPU), 200)
    derived = shown[shown.index("derived") :]
    assert "train_batch_size 16: " in derived
    assert "\n           gas" not in derived  # written under its other name


def test_the_brief_lines_and_the_json_agree_with_the_layout():
    made = spec(SMALL, CPU)
    assert summary.to_json(made)["layout"] == {"tensor": 2, "pipeline": 2, "data": 1, "context": 1}
    assert [line.split()[0] for line in summary.brief_lines(made)] == ["model", "ranks", "batch", "dialect"]


def test_paths_and_places_are_not_wrapped():
    folder = "/a/folder with spaces/of-" + "many-letters" * 6
    made = spec(SMALL + f"run_dir: {folder}/run\n", CPU)
    shown = summary.to_text(made, 60)
    assert f"{folder}/run" in shown
    assert "(configs/my.yml:9:1)" in shown


def test_one_rank_needs_no_grid():
    text = SMALL.replace("size: 2\n", "size: 1\n")
    assert "stage 0" not in summary.to_text(spec(text, replace(CPU, hosts={"localhost": [0]})), 80)


@pytest.mark.parametrize(("device", "each"), [("cuda", "1 GPU each"), ("cpu", "1 rank each")])
def test_one_rank_on_each_machine(device, each):
    hosts = Resources({"a": [0], "b": [0]}, device)
    assert f", on 2 machines, {each}\n" in summary.to_text(spec(SMALL.replace("size: 2\n", "size: 1\n"), hosts))


def test_a_terminal_gets_the_same_text(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    made = spec(SMALL, CPU)
    summary.print_summary(made)
    assert capsys.readouterr().out.rstrip("\n").splitlines() == [
        line.rstrip() for line in summary.to_text(made, 80).splitlines()
    ]


def test_a_log_gets_everything_in_full(capsys):
    made = spec(LARGE + "attention_config: [[[global, sparse_fixed], 22]]\n", assumed_resources(96))
    summary.print_summary(made)
    assert "…" in summary.to_text(made, 80)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps" in " ".join(shown.split())


def test_places_have_one_form_and_no_setting_is_listed_twice():
    shown = " ".join(summary.to_text(spec(SMALL, CPU), 200).split())
    assert "dialect neox-2026 (configs/my.yml:1:1)" in shown
    assert "micro batch 4 (configs/my.yml:9:1)" in shown
    assert "ranks of replica 0" in shown
    assert "adam_beta2" not in " ".join(summary.to_text(spec(LARGE, assumed_resources(96)), 200).split())


def test_a_report_describes_a_run_without_places() -> None:
    found = dict(describe(complete(draft([File("small.yml", SMALL)]), 8)))
    assert found["ranks"] == "8 = tensor 2 x pipeline 2 x data 2"
    assert found["batch"] == "32 samples = micro batch 4 x accumulation 4 x data 2; 8,192 tokens per step"
    assert found["model"].startswith("4 layers, hidden 256, feed-forward 1024, 8 heads, sequence 256")
    assert found["precision"] == "fp32"


def test_what_is_trained_beside_a_frozen_model():
    text = f"{SMALL}base_checkpoint: model\nlora: {{rank: 8, targets: [q_proj]}}\n"
    shown = " ".join(summary.to_text(spec(text, CPU)).split())
    assert "frozen; trained: adapters of rank 8 with 16.4 thousand parameters (0.49% of the model)" in shown
    assert "frozen model from model" in shown


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [("mamba", "Mamba 512"), ("rwkv", "RWKV 256 and 896, 8 heads"), ("flash", "feed-forward 1024, 8 heads")],
)
def test_only_sizes_of_the_model_s_layers_are_shown(kind, sizes):
    text = f"{SMALL}attention_config: [[[{kind}], all]]\npos_emb: none\n".replace(
        "parallel_size: 2", "parallel_size: 1"
    )
    shown = " ".join(summary.to_text(spec(text, CPU), 400, cut=False).split())
    assert f"4 layers, hidden 256, {sizes}, sequence 256" in shown
    assert ("mamba_inner_size 512" in shown) == (kind == "mamba")
    assert ("intermediate_size 1024" in shown) == ("num_kv_heads 8" in shown) == (kind == "flash")


def test_prefixes_follow_their_weights() -> None:
    text = SMALL.replace("text_path: python-stdlib", "data_path: [0.3, data/a, data/b]")
    config = complete(draft([File("my.yml", text)]), 4)
    shown = summary.to_text(RunSpec(config, assumed_resources(4)))
    assert "data       0.3 x data/a, data/b, tokenised by ByteLevelTokenizer" in shown

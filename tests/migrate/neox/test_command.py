"""GPT-NeoX YAML is migrated between dialects in place and keeps its meaning."""

from __future__ import annotations

import re

import pytest

from neoxargs.base.files import Text
from neoxargs.migrate.neox.migrate import migrate
from neoxargs.migrate.neox.rewrites import SPECIAL_REWRITES, rewrites
from neoxargs.migrate.neox.verify import changed
from neoxargs.migrate.result import Result
from neoxargs.registry import REGISTRY
from neoxargs.resolve import File, complete, draft
from tests.support.refused import refused
from tests.support.snapshots import pinned

SIZES = """\
num-layers: 4
hidden-size: 64
num-attention-heads: 4
seq-length: 16
train-iters: 10
train_batch_size: 4
dialect: neox-2026
"""
OF_2021 = SIZES.replace("neox-2026", "neox-2021")


def migrated(lines: str, to: str = "neox-2026", sizes: str = SIZES) -> Result:
    before = Text("my.yml", sizes + lines)
    result = migrate([before], to)
    assert migrate(result.texts, to).texts == result.texts
    return result


def lines(result: Result) -> str:
    """Return the new text without the sizes."""
    text = result.texts[0].text
    assert text.startswith(SIZES[: SIZES.index("dialect")])
    return text.split("\n", 7)[7]


FORWARD = {
    "save-interval: 5 # often\nsave: here\n": "checkpoint-factor: 5 # often\nsave: here\n",
    "save_interval: 5\nsave: here\n": "checkpoint_factor: 5\nsave: here\n",
    "partition-activations: true\ncontigious-checkpointing: true\n": (
        "partition-activations: true\ncontiguous-checkpointing: true\n"
    ),
    "zero-contigious-gradients: true\n": "zero-contiguous-gradients: true\n",
    "geglu: true   # gated\n": "activation: geglu   # gated\n",
    "geglu: false\nseed: 1\n": "seed: 1\n",
    "openai-gelu: true\n": "activation: gelu\nbias-gelu-fusion: true\n",
    '"rms-norm": true\n': '"norm": "rmsnorm"\n',
    "rpe: true\nrpe-causal: true # why not\n": "pos-emb: rpe\nrpe-causal: true # why not\n",
    "sinusoidal-pos-emb: true\n": "pos-emb: sinusoidal\n",
    "sparsity: none\nseed: 1\n": "seed: 1\n",
    "sparsity: all\n": "attention-config: [[[sparse_variable], all]]\n",
    "sparsity: interspersed\n": "attention-config: [[[global, sparse_variable], all]]\n",
    "gas: 2\n": "gradient_accumulation_steps: 2\n",
    "gas: 2\ngradient_accumulation_steps: 2\n": "gradient_accumulation_steps: 2\n",
    "precision: bf16\n": "precision: bfloat16\n",
    "DDP-impl: local\nmask-prob: 0.2\nseed: 1\n": "seed: 1\n",
    "num_experts: 4\nexpert_interval: 2\n": "moe_num_experts: 4\nmoe_expert_interval: 2\n",
    "slurm_comment: mine\nlauncher: slurm\n": "comment: mine\nlauncher: slurm\n",
    "genfile: out.txt\n": "sample-output-file: out.txt\n",
    "greedy: true\n": "temperature: 0.0\ntop-k: 0\ntop-p: 0.0\n",
    "mlp_type: llama\nactivation: silu # smooth\n": (
        "expansion_factor: 8.0\nuse_bias_in_mlp: false\nmlp_multiple_of: 256\nactivation: swiglu # smooth\n"
    ),
    "mlp_type: llama\nexact_mlp_width: true\nintermediate_size: 63\n": (
        "activation: geglu\nuse_bias_in_mlp: false\nexact_mlp_width: true\nintermediate_size: 63\n"
    ),
    "fp16: {enabled: true, type: bfloat16}\nprecision: bf16\n": "fp16: {}\nprecision: bfloat16\n",
    "mlp_type: llama\n": "activation: geglu\nexpansion_factor: 8.0\nuse_bias_in_mlp: false\nmlp_multiple_of: 256\n",
    "cpu-optimizer: true\n": "optimizer: {type: cpu_adam}\n",
    "adam-beta1: 0.8\nadam-eps: 1e-9\n": "optimizer: {params: {betas: [0.8, 0.999], eps: 1e-09}}\n",
    "optimizer:\n  type: Adam\n  params:\n    max_grad_norm: 0.5\n    lr: 0.1\n": (
        "optimizer:\n  type: Adam\n  params:\n    lr: 0.1\ngradient_clipping: 0.5\n"
    ),
    "gradient_clipping: 0.5\noptimizer: {params: {lr: 0.1, max_grad_norm: 0.5}}\n": (
        "gradient_clipping: 0.5\noptimizer: {params: {lr: 0.1}}\n"
    ),
    "fp16: {fp16: true, enabled: true}\n": "fp16: {enabled: true}\n",
    "fp16: {enabled: true, type: bfloat16, hysteresis: 2}\n": "fp16: {hysteresis: 2}\nprecision: bfloat16\n",
    "bfloat16: {enabled: true, bf16: true}\n": "bf16: {enabled: true}\n",
    "zero_optimization: {stage: 2, cpu_offload: true}\n": (
        "zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}\n"
    ),
    "zero_optimization: {stage: 2, cpu_offload: false}\n": "zero_optimization: {stage: 2}\n",
    "zero_optimization:\n  stage: 3\n  offload_param: {device: cpu}\n  cpu_offload_use_pin_memory: true\n": (
        "zero_optimization:\n  stage: 3\n  offload_param: {device: cpu, pin_memory: true}\n"
        "  offload_optimizer: {pin_memory: true}\n"
    ),
    "zero_optimization: {stage: 3, prefetch_bucket_size: 5e8}\n": (
        "zero_optimization: {stage: 3, stage3_prefetch_bucket_size: 5e8}\n"
    ),
    "no_adamw: false\nmoe_glu: true\nmomentum: 0.1\nseed: 3\n": "seed: 3\n",
    "no_adamw: true\n": "optimizer: {params: {adam_w_mode: false}}\n",
    "momentum: 0.1\noptimizer: {type: sm3}\n": "optimizer: {type: sm3, params: {momentum: 0.1}}\n",
    "out_seq_length: 30\n": "maximum_tokens: 30\n",
    "soft_prompt_tuning: {n_tokens: 3}\n": "soft_prompt_tuning: {num_tokens: 3}\n",
    "moe_type: megablocks\nmoe_router_type: topk\nmoe_expert_interval: 2\nnum_experts: 4\n": (
        "moe_router_type: topk\nmoe_expert_interval: 2\nmoe_num_experts: 4\n"
    ),
}
TO_2021 = {
    "norm: rmsnorm\n": "rms-norm: true\n",
    "norm: layernorm\nseed: 1\n": "seed: 1\n",
    "activation: geglu # gated\n": "geglu: true # gated\n",
    "pos_emb: sinusoidal\n": "sinusoidal_pos_emb: true\n",
    "save: here\ncheckpoint_factor: 5\n": "save: here\nsave_interval: 5\n",
    "partition_activations: true\ncontiguous_checkpointing: true\n": (
        "partition_activations: true\ncontigious_checkpointing: true\n"
    ),
    "attention_config: [[[global], all]]\nseed: 1\n": "seed: 1\n",
    "attention_config: [[[global, sparse_variable], all]]\n": "sparsity: interspersed\n",
    "precision: fp16\nfp16: {hysteresis: 2}\n": "fp16: {hysteresis: 2, enabled: true}\n",
    "precision: fp32\nseed: 1\n": "seed: 1\n",
    "use_bias_in_norms: true\nseed: 1\n": "seed: 1\n",
}


@pytest.mark.parametrize("old", FORWARD)
def test_migrating_to_2026(old: str) -> None:
    result = migrated(old)
    assert lines(result) == FORWARD[old]
    assert result.changes


@pytest.mark.parametrize("new", TO_2021)
def test_migrating_to_2021(new: str) -> None:
    result = migrated(new, "neox-2021", OF_2021)
    assert lines(result) == TO_2021[new]
    assert result.problems == []


def test_buckets_of_rpe_that_a_gpt_never_reads_are_kept_only_with_rpe() -> None:
    assert "rpe-causal: false" in lines(migrated("rpe: true\n", sizes=OF_2021))
    assert "rpe-causal" not in lines(migrated("rpe: true\nseed: 1\n"))
    assert "rpe-causal" not in lines(migrated("sinusoidal-pos-emb: true\n", sizes=OF_2021))


def test_an_error_before_and_after_is_a_warning() -> None:
    result = migrated("lr: 0.1\noptimizer: {type: Adam, params: {lr: 0.2}}\ngeglu: true\n")
    (problem,) = result.problems
    assert problem.what == "lr (0.1) and optimizer.params.lr (0.2) are the same setting and must be equal"
    assert problem.severity == "warning"
    assert "activation: geglu" in result.texts[0].text


def test_a_dropped_name_is_not_taken_for_a_similar_one() -> None:
    result = migrated("moe_expert_parallel_size: 2\n")
    assert [(change.before, change.after) for change in result.changes] == [("moe_expert_parallel_size: 2", "")]


def test_an_anchor_that_is_set_twice() -> None:
    pinned(refused(migrated, "fp16: &a {enabled: true}\nbf16: &a {enabled: false}\n"))


def test_every_rewrite_has_a_parameter_and_a_reason() -> None:
    for name, group in rewrites().items():
        for row in group:
            parameter = REGISTRY.find(name)
            assert parameter, name
            assert row.why


def test_everything_but_the_edited_lines_is_kept() -> None:
    text = """\
# A model of ours.
{
  # sizes
  "num-layers": 4,     "hidden-size": 64,
  "num-attention-heads": 4,   # few
  "seq-length": 16,

  "train-iters": 10, 'train_batch_size': 4,
  "save": "here",  "save-interval": 5,
  "zero_optimization": {"stage": 0,
     "cpu_offload": False   # not yet
  },
  "geglu":true
}
# the end
"""
    expected = (
        text.replace('"save-interval"', '"checkpoint-factor"')
        .replace('{"stage": 0,\n     "cpu_offload": False   # not yet\n', '{"stage": 0\n     # not yet\n')
        .replace(
            '"geglu":true\n',
            '"activation": "geglu",\n'
            "  # defaults of neox-2021 that differ in neox-2026\n"
            '  "gradient_clipping": 0.0,\n'
            '  "attention-dropout": 0.1,\n'
            '  "hidden-dropout": 0.1,\n'
            '  "weight-decay": 0.01,\n'
            '  "warmup-from-zero": true,\n'
            '  "dialect": "neox-2026"\n',
        )
    )
    result = migrate([Text("my.yml", text)], "neox-2026").texts[0].text
    pinned = re.compile(r"(?<=differ in neox-2026\n)(.*)(?=  \"dialect)", re.S)
    (actual,), (wanted,) = pinned.findall(result), pinned.findall(expected)
    assert pinned.sub("", result) == pinned.sub("", expected)
    assert [line.rpartition(":")[2].strip(" ,") for line in sorted(actual.splitlines())] == [
        line.rpartition(":")[2].strip(" ,") for line in sorted(wanted.splitlines())
    ]


@pytest.mark.parametrize(
    ("dialect", "to", "value"), [("neox-2026", "neox-2021", "true"), ("neox-2021", "neox-2026", "false")]
)
def test_a_default_that_is_derived_in_one_of_the_dialects_is_written(dialect: str, to: str, value: str) -> None:
    shape = (
        "num_layers: 2\nhidden_size: 8\nnum_attention_heads: 2\nseq_length: 16\ntrain_iters: 10\ntrain_batch_size: 4\n"
    )
    text = f"{shape}norm: rmsnorm\nrms_norm_epsilon: 0.00001\ndialect: {dialect}\n"
    assert f"rms_norm_epsilon_under_root: {value}\n" in migrate([Text("my.yml", text)], to).texts[0].text
    assert "under_root" not in migrate([Text("my.yml", text.replace("0.00001", "1e-8"))], to).texts[0].text


def test_defaults_are_written_only_if_the_file_does_not_set_them() -> None:
    settings = "clip-grad: 2.0\nattention-dropout: 0\noptimizer: {type: Adam}\nfp16: {enabled: true}\n"
    text = lines(migrated(settings, sizes=OF_2021))
    assert re.findall(r"^(hidden-dropout|weight-decay|gradient_clipping|attention-dropout): (.*)$", text, re.M) == [
        ("attention-dropout", "0"),
        ("hidden-dropout", "0.1"),
        ("weight-decay", "0.01"),
    ]


def test_windows_line_ends_are_kept() -> None:
    text = (SIZES + "geglu: true\nsave: x\nsave-interval: 5").replace("\n", "\r\n")
    result = migrate([Text("my.yml", text)], "neox-2026").texts[0].text
    assert result.endswith("activation: geglu\r\nsave: x\r\ncheckpoint-factor: 5")
    assert result.count("\n") == result.count("\r\n")


def test_an_aliased_value_is_edited_once() -> None:
    text = (
        "zero_optimization:\n  stage: 3\n  offload_param: &there {device: cpu}\n  offload_optimizer: *there\ngas: 1\n"
    )
    assert lines(migrated(text)) == text.replace("gas", "gradient_accumulation_steps")


def test_several_files_of_one_run() -> None:
    first, second = Text("a.yml", OF_2021 + "rms-norm: true\n"), Text("b.yml", "save: here\nsave-interval: 9\n")
    result = migrate([first, second], "neox-2026")
    assert result.texts[1].text == "save: here\ncheckpoint-factor: 9\n"
    assert "dialect: neox-2026\n" in result.texts[0].text
    assert [str(change.where) for change in result.changes][:2] == ["a.yml:8:1", "b.yml:2:1"]


def test_part_of_a_configuration_gets_no_dialect() -> None:
    result = migrate([Text("local.yml", "save: here\nsave-interval: 9\n")], "neox-2026")
    assert result.texts[0].text == "save: here\ncheckpoint-factor: 9\n"
    (problem,) = result.problems
    assert (problem.severity, problem.what) == (
        "warning",
        "num_layers is missing, so this is only part of a configuration; no dialect and no defaults are added",
    )


@pytest.mark.parametrize("text", [
    "geglu: true\nactivation: relu\n", "moe_type: megablocks\nmoe_min_capacity: 8\nnum_experts: 4\n",
    "mlp_type: llama\nintermediate_size: 64\n", "moe_glu: true\nnum_experts: 4\n", "hiden-size: 4\n",
    "save: 1\nseed: x\n", "a: b: c\n", "adam-beta1: 0.8\noptimizer: {type: SGD}\n",
    "activation: silu\nintermediate_size: 63\nmlp_type: llama\n", "num_experts: 4\nuse_tutel: true\n",
    "moe_loss_coeff: 0.2\nmoe_num_experts: 4\n", "optimizer: {type: SGD}\nadam-beta2: 0.8\n",
])  # fmt: skip
def test_errors(text: str) -> None:
    pinned(refused(migrate, [Text("my.yml", SIZES + text)], "neox-2026"))


def test_every_rewrite_that_can_fail_says_what_to_write_instead() -> None:
    may_fail = [rewrite for rewrite in SPECIAL_REWRITES if callable(rewrite.new) and rewrite.old != "mlp_type"]
    always = {"sparsity", "fp16.type", "optimizer.params.max_grad_norm"}
    assert {rewrite.old for rewrite in may_fail if not rewrite.by_hand} == always


def test_settings_without_a_counterpart_in_2021_are_kept_with_a_warning() -> None:
    result = migrated("pos_emb: rotary\nbf16: {enabled: true}\nprecision: bfloat16\n", "neox-2021", OF_2021)
    assert lines(result) == "pos_emb: rotary\nbf16: {enabled: true}\nprecision: bfloat16\n"
    assert [(str(p.where), p.what, p.severity) for p in result.problems] == [
        ("my.yml:8:1", "pos_emb does not exist in neox-2021: GPT-NeoX added it on 2021-03-04", "warning"),
        ("my.yml:9:1", "bf16 does not exist in neox-2021: GPT-NeoX added it on 2023-03-26", "warning"),
        ("my.yml:10:1", "precision does not exist in neox-2021: GPT-NeoX added it on 2021-04-30", "warning"),
    ]


def test_round_trip() -> None:
    forward = migrated("geglu: true\nsave: x\nsave-interval: 5\n", sizes=OF_2021)
    back = migrate(forward.texts, "neox-2021")
    original = complete(draft([File("my.yml", OF_2021 + "geglu: true\nsave: x\nsave-interval: 5\n")]), 1)
    assert list(changed(original, complete(draft([File(*text) for text in back.texts]), 1))) == []
    assert "geglu: true" in back.texts[0].text


def test_a_section_under_two_names_is_kept_with_a_warning() -> None:
    result = migrated("autotuning_config: {arg_mappings: {}}\nautotuning: {enabled: false}\n")
    assert lines(result) == "autotuning_config: {arg_mappings: {}}\nautotuning: {enabled: false}\n"
    (warning,) = [problem for problem in result.problems if problem.id == "migrate-section-twice"]
    assert str(warning.where) == "my.yml:8:1"

"""Megatron-LM scripts are converted to YAML, the inverse of `--emit megatron`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from neoxargs.base.files import Text
from neoxargs.base.problems import Problems
from neoxargs.cli import main
from neoxargs.config.config import Config
from neoxargs.facts.model import mlp_width
from neoxargs.migrate.megatron.convert import convert_script
from neoxargs.migrate.result import Result
from neoxargs.resolve import File, complete, draft
from tests.support.refused import ids, refused
from tests.support.snapshots import pinned

SIZES = (
    "--lr 1e-3 --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
    "--micro-batch-size 2 --train-iters 9 "
)


def converted(flags: str) -> Result:
    return convert_script(Text("run.sh", f"python pretrain_gpt.py {SIZES} {flags}"))


def config(flags: str) -> Config:
    return complete(draft([File("new.yml", converted(flags).text)]), 8)


def test_flags_in_variables_are_read_if_no_command_has_flags() -> None:
    script = f'SIZE="{SIZES}"\nONE="$SIZE --lr 1"\nTWO=(--seed 3)\n'
    result = convert_script(Text("args.sh", script))
    assert {"lr: 1", "seed: 3", "num_layers: 4"} <= set(result.text.splitlines())
    assert result.problems[0].what.startswith("no command in this file has Megatron-LM flags")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", {"attention_dropout": 0.1, "weight_decay": 0.01, "warmup": 0.0, "gradient_clipping": 1.0}),
        ("", {"bias_gelu_fusion": True, "pipe_parallel_size": 0, "zero_optimization.stage": 0}),
        ("--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4", {"model_parallel_size": 2}),
        ("--model-parallel-size 2 --pipeline-model-parallel-size 4", {"pipe_parallel_size": 4}),
        ("--pipeline-model-parallel-size 4 --no-pipeline-parallel", {"pipe_parallel_size": 0}),
        ("--no_pipeline_parallel --pipeline-model-parallel-size 4", {"pipe_parallel_size": 0}),
        ("--swiglu --disable-bias-linear", {"activation": "swiglu", "use_bias_in_mlp": False}),
        ("--swiglu --disable-bias-linear", {"use_bias_in_attn_linear": False, "use_bias_in_norms": True}),
        ("--swiglu --ffn-hidden-size 96", {"intermediate_size": 288}),
        ("--swiglu", {"activation": "swiglu", "intermediate_size": 3 * 128}),
        ("--swiglu --hidden-size 4096 --num-attention-heads 32", {"intermediate_size": 3 * 10880}),
        ("--swiglu --hidden-size 16", {"intermediate_size": 64}),
        ("--ffn-hidden-size 96", {"intermediate_size": 96}),
        ("--no-bias-gelu-fusion --no-masked-softmax-fusion", {"bias_gelu_fusion": False}),
        ("--no-masked-softmax-fusion", {"scaled_masked_softmax_fusion": False, "bias_gelu_fusion": True}),
        ("--no-bias-dropout-fusion --no-rope-fusion", {"bias_dropout_fusion": False, "rope_fusion": False}),
        ("--use-distributed-optimizer", {"zero_optimization.stage": 1}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"zero_optimization.stage": 2}),
        ("--use-megatron-fsdp", {"zero_optimization.stage": 3}),
        ("--recompute-granularity full --recompute-num-layers 2", {"checkpoint_activations": True}),
        ("--checkpoint-activations --checkpoint-num-layers 2", {"checkpoint_num_layers": 2}),
        ("--recompute-method uniform --distribute-saved-activations", {"partition_activations": True}),
        ("--fp16 --initial-loss-scale 4096 --min-loss-scale 2", {"precision": "fp16", "fp16.initial_scale_power": 12}),
        ("--fp16 --loss-scale 512", {"fp16.loss_scale": 512.0}),
        ("--bf16", {"precision": "bfloat16"}),
        ("--normalization RMSNorm --norm-epsilon 1e-6", {"norm": "rmsnorm", "rms_norm_epsilon": 1e-6}),
        ("--layernorm-epsilon 1e-6", {"norm": "layernorm", "layernorm_epsilon": 1e-6}),
        ("--position-embedding-type rope --rotary-percent 0.5", {"pos_emb": "rotary", "rotary_pct": 0.5}),
        ("--group-query-attention --num-query-groups 2", {"num_kv_heads": 2}),
        ("--adam-beta2 0.95 --adam-eps 1e-6", {"optimizer.params.betas": [0.9, 0.95], "adam_eps": 1e-6}),
        ("--optimizer sgd --sgd-momentum 0.8", {"optimizer.type": "SGD", "optimizer.params.momentum": 0.8}),
        ("--sgd-momentum 0.8 --muon-momentum 0.7", {"optimizer.type": "Adam", "optimizer.params.momentum": None}),
        ("--optimizer muon --muon-momentum 0.7", {"optimizer.params.momentum": 0.7}),
        ("--optimizer muon --muon-use-nesterov", {"optimizer.params.nesterov": True}),
        (
            "--optimizer muon --muon-nesterov --muon-no-split-qkv --muon-num-ns-steps 6",
            {"optimizer.params.nesterov": True, "optimizer.params.split_qkv": False, "optimizer.params.ns_steps": 6},
        ),
        (
            "--optimizer muon --muon-scale-mode shape_scaling --muon-extra-scale-factor 0.2",
            {"optimizer.params.adjust_lr_fn": "original", "optimizer.params.extra_scale_factor": 0.2},
        ),
        ("--muon-nesterov --muon-scale-mode unit_rms_norm", {"optimizer.params.nesterov": None}),
        # defaults of Megatron-LM that differ from this dialect's
        ("--normalization RMSNorm", {"rms_norm_epsilon": 1e-5}),
        ("--optimizer sgd", {"optimizer.params.momentum": 0.9}),
        ("--optimizer lion", {"optimizer.params.betas": [0.95, 0.98]}),
        ("--optimizer muon", {"optimizer.params.nesterov": False, "optimizer.params.adjust_lr_fn": "spectral"}),
        ("--fp16", {"fp16.initial_scale_power": 32}),
        ("--clip-grad 0.5 --lr 1e-4 --weight-decay 0.1", {"gradient_clipping": 0.5, "lr": 1e-4, "weight_decay": 0.1}),
        ("--lr-warmup-iters 3 --lr-decay-iters 6", {"warmup": 0.5, "lr_decay_iters": 6}),
        ("--warmup 0.1", {"warmup": 0.1}),
        ("--global-batch-size 32 --train-samples 640", {"train_iters": 20, "train_batch_size": 32}),
        (
            "--global-batch-size 32 --train-samples 650 --lr-decay-samples 330",
            {"train_iters": 20, "lr_decay_iters": 10},
        ),
        ("--data-path tokens", {"data_path": "tokens"}),
        ("--data-path 0.3 a 0.7 b", {"data_path": [0.3, "a", 0.7, "b"]}),
        ("--train-data-path 1 a 2 b --valid-data-path c --test-data-path d", {"train_data_weights": [1.0, 2.0]}),
        (
            "--train-data-path a --valid-data-path d/c_text_document e/c --test-data-path d --multiple-validation-sets",
            {"validation": {"c": "d/c_text_document", "c-2": "e/c"}, "valid_data_paths": None},
        ),
        (
            "--multiple-validation-sets --train-data-path a --valid-data-path 1 c 2 d --test-data-path d",
            {"validation": {"c": "c", "d": "d"}, "valid_data_weights": None},
        ),
        (
            "--validation-set-names law code "
            "--multiple-validation-sets --train-data-path a --valid-data-path c d --test-data-path d",
            {"validation": {"law": "c", "code": "d"}},
        ),
        ("--async-save", {"save_in_background": True}),
        ("--save out --save-interval 5", {"save": "out", "checkpoint_factor": 5}),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model t.json", {"tokenizer_type": "HFTokenizer"}),
        ("--untie-embeddings-and-output-weights", {"no_weight_tying": True}),
        ("--use-flash-attn", {"attention_config": ["flash"] * 4}),
        ("--wandb-project p", {"use_wandb": True, "wandb_project": "p"}),
        ("--num-experts 4 --moe-router-topk 2", {"moe_num_experts": 4, "moe_top_k": 2}),
        ("--seed=7 --seed 8", {"seed": 8}),
        ("--context-parallel-size 2", {"context_parallel_size": 2}),
        ("--ds-sequence-parallel-size 2", {"context_parallel_size": 2}),
        ("--check-for-spiky-loss", {"on_spike": "warn"}),
        ("--check-for-large-grads", {"on_spike": "warn"}),
        ("--lr-decay-style inverse-square-root --lr-warmup-iters 3", {"lr_decay_style": "inverse-square-root"}),
        ("--lr-decay-style WSD --lr-wsd-decay-iters 2", {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 2}),
        ("--lr-decay-style WSD --global-batch-size 16 --lr-wsd-decay-samples 32", {"lr_wsd_decay_iters": 2}),
        ("--lr-wsd-decay-style minus_sqrt", {"lr_wsd_decay_style": "minus_sqrt"}),
    ],
)
def test_flags_as_yaml(flags: str, expected: dict[str, object]) -> None:
    result = config(flags)
    assert {name: result.get(name) for name in expected} == expected


def test_weights_of_validation_sets_are_named_as_left_out() -> None:
    flags = "--train-data-path a --test-data-path d --multiple-validation-sets --valid-data-path"
    weighted, plain = (converted(f"{flags} {paths}")
                       for paths in ("1 c 2 d", "c d"))  # fmt: skip
    (problem,) = [each for each in weighted.problems if each not in plain.problems]
    assert (problem.id, problem.about) == ("migrate-flag-without-counterpart", ("validation",))
    pinned(problem)


@pytest.mark.parametrize("flags", ["", "--multiple-validation-sets --valid-data-path c d"])
def test_names_without_as_many_validation_sets_are_left_out(flags: str) -> None:
    named = f"python pretrain_gpt.py {SIZES} --validation-set-names law {flags}"
    (problem,) = [each for each in convert_script(Text("run.sh", named)).problems if "-set-names" in each.what]
    pinned(problem)


def test_swiglu_has_the_default_width_of_megatron() -> None:
    result = config("--swiglu --hidden-size 4096 --num-attention-heads 32")
    assert mlp_width(result.shape, result.mlp) == int(4 * 4096 * 2 / 3 / 64) * 64
    text = converted("--swiglu").text
    pinned(text, "intermediate_size: 384")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", False),  # without rotary positions it would have no effect
        ("--position-embedding-type rope", True),
        ("--use-rotary-position-embeddings", True),
        ("--position-embedding-type rope --no-rope-fusion", False),
    ],
)
def test_rotary_positions_are_fused_by_default(flags: str, expected: bool) -> None:
    result = converted(flags)
    assert ("rope_fusion: true  # Megatron-LM's default" in result.text) == expected
    assert not [problem for problem in result.problems if "rope_fusion" in problem.what]


@pytest.mark.parametrize("flag", ["--deepspeed-config", "--deepspeed_config"])
def test_the_deepspeed_json_has_to_be_migrated_separately(flag: str) -> None:
    (problem,) = converted(f"{flag} ds.json").problems
    pinned(problem)


def test_no_pipeline_is_written() -> None:
    text = converted("--no-pipeline-parallel").text
    assert "pipe_parallel_size: 0\n" in text


@pytest.mark.parametrize(
    ("given", "style"),
    [("p2p", "ring"), ("a2a", "all_to_all"), ("all_gather", ""), ("p2p a2a", ""), ("a2a+p2p", "hybrid")],
)
def test_context_parallelism_keeps_its_style(given: str, style: str) -> None:
    flags = f"--context-parallel-size 2 --cp-comm-type {given}"
    result = converted(flags)
    assert (f"\ncontext_parallel_style: {style}\n" in result.text) == bool(style)
    assert [problem.id for problem in result.problems] == ["migrate-flag-without-counterpart"] * (not style)


def test_a_flag_is_not_suggested_for_itself() -> None:
    (problem,) = converted("--optimizer other").problems
    assert problem.hint == ""
    pinned(problem.what)


@pytest.mark.parametrize(
    ("flags", "to_do"),
    [
        ("--train-samples 640", "set train_iters (for --train-samples 640)."),
        ("--train-samples 31 --global-batch-size 32", "set train_iters (for --train-samples 31)."),
        ("--train-samples $N --global-batch-size 32", "set train_iters (for --train-samples $N)."),
        ("--global-batch-size 32", "set train_iters, which the script does not set."),
    ],
)
def test_unknown_iterations_are_listed_as_to_do(flags: str, to_do: str) -> None:
    result = convert_script(Text("run.sh", f"python pretrain_gpt.py {SIZES.replace('--train-iters 9', '')} {flags}"))
    assert "\ntrain_iters" not in result.text
    assert f"# TODO: {to_do}\n" in result.text
    if to_do.endswith(f"{flags})."):
        assert "set train_iters in the new file to samples / global batch size" in [p.hint for p in result.problems]


@pytest.mark.parametrize(
    "lengths",
    ["--train-samples 650 --lr-decay-samples 600", "--train-tokens {650} --lr-decay-tokens {600} --train-samples 999"],
)
def test_a_ramp_of_the_batch_is_kept_with_lengths_in_samples(lengths: str) -> None:
    seq_length = int(SIZES.partition("--seq-length ")[2].split()[0])
    for samples in (650, 600):
        lengths = lengths.replace(f"{{{samples}}}", str(samples * seq_length))
    flags = f"{lengths} --global-batch-size 32 --rampup-batch-size 8 8 64 --lr-warmup-samples 60"
    result = convert_script(Text("run.sh", f"python pretrain_gpt.py {SIZES.replace('--train-iters 9', '')} {flags}"))
    config = yaml.safe_load(result.text)
    kept = {"rampup_batch_size": [8, 8, 64], "train_samples": 650, "lr_decay_samples": 600, "warmup": 0.1}
    assert {name: config.get(name) for name in kept} == kept
    assert {"train_iters", "lr_decay_iters"}.isdisjoint(config) and "TODO" not in result.text
    assert "rampup" not in " ".join(problem.what for problem in result.problems)


@pytest.mark.parametrize("words", ["'0:8 4K:16 8K:32'", "0:8 4K:16 8K:32"])
def test_the_sizes_of_a_batch_by_phases_are_kept(words: str) -> None:
    flags = f"{SIZES.replace('--train-iters 9', '')} --train-samples 6500 --step-batch-size-schedule {words}"
    result = convert_script(Text("run.sh", f"python pretrain_gpt.py {flags}"))
    config = yaml.safe_load(result.text)
    phases = [{"until": "4K tokens", "size": 8}, {"until": "8K tokens", "size": 16}, {"size": 32}]
    assert (config["batch_size_schedule"], config["train_batch_size"], config["train_samples"]) == (phases, 32, 6500)
    assert "TODO" not in result.text and "train_iters" not in config


def test_unknown_values_of_launcher_flags_are_left_out() -> None:
    script = f"N=$(nvidia-smi | wc -l)\ntorchrun --nproc-per-node $N pretrain_gpt.py {SIZES} --${{KIND}}"
    result = convert_script(Text("run.sh", script))
    assert "num_gpus" not in result.text
    pinned(result.problems)


def test_a_secret_is_left_out_and_repeated_nowhere() -> None:
    flags = "--wandb-api-key hunter2 --hf-token=hunter2 --other-password hunter2"
    result = converted(flags)
    assert "hunter" not in result.text + "".join(problem.what for problem in result.problems)
    assert "wandb-api-key" not in result.text and "hf-token" not in result.text  # they do not affect the model
    pinned(result.problems)


def test_flags_without_a_counterpart_are_warnings() -> None:
    flags = "--overlap-grad-reduce --hiden-size 3 --noop-layers 1 --recompute-granularity selective"
    text = f"python pretrain_gpt.py {SIZES}\\\n  {flags}"
    problems = convert_script(Text("run.sh", text)).problems
    assert {problem.severity for problem in problems} == {"warning"}
    pinned(problems)


@pytest.mark.parametrize("script", [
    "python pretrain_gpt.py --num-layers many", "N=x\npython pretrain_gpt.py --num-layers $N", "echo hello",
])  # fmt: skip
def test_errors(script: str) -> None:
    pinned(refused(convert_script, Text("run.sh", script)))


BRANCHES = """\
if [ $SIZE = small ]; then L=2
else L=4; fi
cat <<EOT > $OUT/ds.json
{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": $MICRO,
 "steps_per_print": $STEPS}
EOT
./pretrain_gpt.py --num-layers $L --zero-stage 1 --deepspeed_config $OUT/ds.json --save $OUT --load $OUT --lr ${LR:?}
"""


def test_each_unknown_value_is_one_warning_and_the_rest_is_converted() -> None:
    result = convert_script(Text("run.sh", BRANCHES), {"MICRO": "3"}, {"SIZE": "large", "HOME": "/"})
    pinned([line for line in result.text.splitlines() if line.startswith("#")][1:])
    assert "num_layers: 4\n" in result.text
    assert "stage: 2\n" in result.text
    assert "train_micro_batch_size_per_gpu: 3\n" in result.text
    pinned(result.problems)


def test_unknown_values_of_a_here_document_are_left_to_the_user() -> None:
    json_text = '{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": $CLIP}'
    script = f"cat <<EOT > ds.json\n{json_text}\nEOT\npython pretrain_gpt.py {SIZES} --deepspeed_config ds.json"
    pinned(convert_script(Text("run.sh", script)).to_do)
    assert convert_script(Text("run.sh", script), {"CLIP": "2"}).to_do == []


def test_other_here_documents_are_not_read() -> None:
    text = "cat <<EOT > hosts.py\nhosts = {broken\n{\nEOT\n./pretrain_gpt.py --num-layers 3 --deepspeed-config ds.json"
    (problem,) = convert_script(Text("run.sh", text)).problems
    assert problem.what.startswith("--deepspeed-config ds.json is left out, because the script does not contain")


def test_choosing_one_of_several_configurations_in_a_here_document() -> None:
    json_text = '{"zero_optimization": {"stage": 1},\n "zero_optimization": {"stage": 2}}'
    script = Text(
        "run.sh", f"cat <<EOT > ds.json\n{json_text}\nEOT\npython pretrain_gpt.py {SIZES} --deepspeed-config ds.json"
    )
    assert ids(refused(convert_script, script)) == ["migrate-several-configurations"]
    assert "stage: 2" in convert_script(script, choose=2).text
    pinned(refused(convert_script, Text("run.sh", f"python pretrain_gpt.py {SIZES}"), choose=2))


def test_a_second_model_in_the_script_is_a_warning() -> None:
    command = f"python pretrain_gpt.py {SIZES}"
    (problem,) = convert_script(Text("run.sh", f"{command}\n{command} --lr 1e-4")).problems
    pinned(problem)
    assert [str(place) for place in (problem.where, *problem.also)] == ["run.sh:2:1", "run.sh:1:1"]


def test_a_model_that_a_condition_selects_is_refused() -> None:
    command = f"torchrun pretrain_gpt.py {SIZES}"
    with pytest.raises(Problems, match="commands that describe different models depend on this") as stop:
        convert_script(Text("run.sh", f"if [ -f x ]; then\n{command} --lr 1\nelse\n{command} --lr 2\nfi"))
    assert [str(problem.where) for problem in stop.value.problems] == ["run.sh:1:4"]
    assert convert_script(Text("run.sh", f"if [ -f x ]; then\n{command}\nelse\n{command}\nfi")).to_do == []


def test_what_depends_on_an_unknown_condition_is_refused() -> None:
    text = "if [ $A = x ]; then N=3; M=1; else N=4; M=2; fi\npython pretrain_gpt.py --num-layers $N --seed $M --lr 1"
    (problem,) = refused(convert_script, Text("run.sh", text))
    assert (str(problem.where), problem.id, problem.severity) == ("run.sh:1:4", "migrate-branch-unknown", "error")
    assert problem.what.startswith("--num-layers and --seed depend on this condition")
    assert problem.hint.startswith("add --var A=VALUE; or, ") and "--run" in problem.hint
    assert "num_layers: 3\n" in convert_script(Text("run.sh", text), {"A": "x"}).text


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(f"python pretrain_gpt.py {SIZES} --swiglu\n")
    assert main(["migrate", "run.sh", "-o", "new.yml"]) == 0
    assert Path("new.yml").read_text().startswith("# Converted from run.sh by deepy migrate.\n")
    assert main(["check", "new.yml", "--gpus", "1"]) in (0, 1)
    assert main(["migrate", "run.sh", "--var", "N=3", "--json"]) == 0
    assert "num_layers: 4\n" in json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))["text"]


def test_a_given_variable_that_changes_nothing_is_a_warning() -> None:
    flags = "--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP"
    script = f"TP=2\nPP=${{PP:-2}}\npython pretrain_gpt.py {SIZES} {flags}"
    result = convert_script(Text("run.sh", script), {"TP": "4", "PP": "4", "FOO": "1"})
    found = [problem for problem in result.problems if problem.id == "migrate-variable-without-effect"]
    pinned([problem.what.partition(" has no effect: ")[2] for problem in found])
    assert found[0].where and found[0].where.line == 1
    assert "model_parallel_size: 2" in result.text and "pipe_parallel_size: 4" in result.text


@pytest.mark.parametrize(
    ("flags", "line", "words"),
    [
        ("--bf16 $X", "precision: bfloat16", ["$X"]),
        ("--save out $X $(cat y)", "save: out", ["$X", "$(cat y)"]),
        ("--overlap-grad-reduce $X_ARGS --seed 3", "seed: 3", ["$X_ARGS"]),
        ("--data-path x $X", "data_path: x", ["$X"]),
        ("--data-path 0.3 x 0.7 y $X", "data_path: [0.3, x, 0.7, y]", ["$X"]),
    ],
)
def test_unknown_variables_with_further_flags(flags: str, line: str, words: list[str]) -> None:
    result = converted(flags)
    assert line in result.text.splitlines()
    expected = [f"the flags in {word} are unknown and are left out" for word in words]
    assert [problem.what for problem in result.problems if problem.id == "migrate-variable-unset"] == expected
    assert f"# TODO: add the settings of the flags in {words[0]}, which are unknown." in result.text


def test_an_unknown_variable_before_all_flags() -> None:
    (problem,) = convert_script(Text("run.sh", f"./pretrain_gpt.py $ARGS {SIZES}")).problems
    assert problem.hint == "add --var ARGS=VALUE"
    pinned(problem.what)


@pytest.mark.parametrize(
    "flags", ["--data-path $X", "--data-path 0.3 x $W $P", "--lr $X", "--data-cache-path $TARGET_DIR"]
)
def test_unknown_values_are_not_further_flags(flags: str) -> None:
    problems = converted(flags).problems
    assert problems and not any("the flags in" in problem.what for problem in problems)


def test_unknown_arithmetic_is_quoted_completely() -> None:
    script = (
        'N=$(nproc)\npython pretrain_gpt.py --num-layers $((A*8/(B*2))) --seed $(f "$(g 1)") --hidden-size $((N*2))'
    )
    pinned(convert_script(Text("run.sh", script)).problems)


def test_defaults_beside_unknown_flags_are_uncertain() -> None:
    result = converted("--bf16 $MORE")
    pinned(result.text, "weight_decay: 0.01")


def test_left_out_flags_that_change_the_model_are_in_the_new_file() -> None:
    flags = "--overlap-grad-reduce --squared-relu --log-throughput --overlap-param-gather"
    result = converted(flags)
    pinned(result.text.splitlines()[1])
    pinned(result.problems)


def test_a_warm_up_that_cannot_be_converted_has_no_default() -> None:
    result = converted("--lr-warmup-samples 100")
    assert "# TODO: set warmup (for --lr-warmup-samples 100)." in result.text
    assert "\nwarmup:" not in result.text
    assert result.problems[0].what.endswith("because the total number of samples is unknown")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("Llama2Tokenizer", "set tokenizer_type: SPMTokenizer in the new file"),
     ("NullTokenizer", "in the new file, set tokenizer_type and vocab_file as when the data was tokenised")],
)  # fmt: skip
def test_tokenizers_without_a_counterpart(name: str, hint: str) -> None:
    result = converted(f"--tokenizer-type {name}")
    assert f"# TODO: set tokenizer_type (for --tokenizer-type {name})." in result.text
    assert [problem.hint for problem in result.problems] == [hint]


def test_several_machines_without_a_hostfile() -> None:
    command = "torchrun --nnodes 4 --master_addr localhost pretrain_gpt.py"
    text = convert_script(Text("run.sh", f"{command} {SIZES}")).text
    pinned(text, "TODO: set")
    assert "master_addr" not in text


@pytest.mark.parametrize(
    "command",
    ["eval $C", "$C", "bash -c \"$C\"", "python pretrain_gpt.py --num-layers 2 $C", "$C --seed 1",
     "torchrun --nnodes $C pretrain_gpt.py --num-layers 2"],
)  # fmt: skip
def test_nothing_is_written_if_a_condition_decides_what_is_started(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    begin = f"python pretrain_gpt.py {SIZES}"
    Path("run.sh").write_text(f"if grep -q x y; then C='{begin} --seed 3'; else C='{begin} --seed 4'; fi\n{command}\n")
    assert main(["migrate", "run.sh", "-o", "new.yml", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    errors = [each for each in answer["problems"] if each["severity"] == "error"]
    assert [(each["id"], each["line"], each["column"]) for each in errors] == [("migrate-branch-unknown", 1, 4)]
    assert not Path("new.yml").exists()


@pytest.mark.parametrize(
    ("lines", "launcher", "expected"),
    [
        ("--nodes=4\n#SBATCH --ntasks-per-node=8", "srun", [4, 8]),
        ("-N2 -n 2 # two\n#SBATCH --gres=gpu:a100:4", "srun torchrun --nnodes $SLURM_NNODES", [2, 4]),
        ("-N 2 -G h100:16", "torchrun --nproc_per_node $SLURM_GPUS_ON_NODE --nnodes 3", [3, 8]),
        ("--nodes 2 --ntasks-per-node 2 --gpus-per-task=1", "srun", [2, 2]),
        ("--nodes 1 --gpus-per-node 8", "", [1, 8]),
        ("--nodes 1-2", "", [None, None]),
    ],
)
def test_the_nodes_of_a_slurm_job(lines: str, launcher: str, expected: list[int | None]) -> None:
    result = convert_script(Text("job.sh", f"#!/bin/bash\n#SBATCH {lines}\n{launcher} python pretrain_gpt.py {SIZES}"))
    settings = yaml.safe_load(result.text)
    assert [settings.get("num_nodes"), settings.get("num_gpus")] == expected
    assert settings.get("launcher") == ("srun" if (expected[0] or 1) > 1 else None)
    assert "hostfile" not in result.text


def test_slurm_options_without_a_parameter_are_listed() -> None:
    head = "#!/bin/bash\n#SBATCH -A physics -t 4:00:00\n##SBATCH -q low\n#SBATCH --exclusive -p gpu\n"
    tail = "cd x\n#SBATCH --mem=1\ntorchrun --master_addr $(head -n 1 $NODES) --nnodes 2 "
    result = convert_script(Text("job.sh", f"{head}#SBATCH -N 2\n{tail} pretrain_gpt.py {SIZES}"))
    assert "account: physics\n" in result.text
    [problem] = [problem for problem in result.problems if problem.id == "migrate-slurm-option"]
    pinned(problem)
    assert problem.where and problem.where.line == 2
    # srun needs no address, so it is not asked for.
    assert "migrate-variable-unset" not in {problem.id for problem in result.problems}


def test_a_script_is_planned_as_the_run_that_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} --bf16 --data-path $DATA\n")
    assert main(["migrate", "run.sh", "-o", "run.yml"]) == 1  # the path of the data is left open
    capsys.readouterr()
    planned = []
    for file in ("run.sh", "run.yml"):
        assert main(["plan", file, "--device", "H100", "--json"]) == 0
        planned.append(capsys.readouterr())
    script, converted = (json.loads(each.out) for each in planned)
    assert script["stages"] == converted["stages"] and script["speed"] == converted["speed"]
    assert not planned[0].err and converted["problems"] == []
    for words in (["--json"], ["--search", "--gpus", "8"]):
        assert main(["plan", "run.sh", "--device", "H100", *words]) == 0
        printed = capsys.readouterr()
        assert words == ["--json"] or "script-not-whole" in printed.err
    pinned([f"{each['id']}: {each['what']}" for each in script["problems"]])
    Path("hosts.sh").write_text(
        f"torchrun --nnodes 3 --nproc_per_node 4 pretrain_gpt.py {SIZES} --bf16 --data-path d\n"
    )
    assert main(["plan", "hosts.sh", "--device", "H100", "--json"]) == 0
    several = json.loads(capsys.readouterr().out)
    assert main(["plan", "hosts.sh", "--device", "H100", "--json", "--gpus", "12", "--per-host", "4"]) == 0
    assert several["speed"] == json.loads(capsys.readouterr().out)["speed"]
    Path("other.sh").write_text("echo hi\n")
    assert main(["plan", "other.sh", "--search"]) == 1
    assert "migrate-no-command" in capsys.readouterr().err

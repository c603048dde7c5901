"""Snapshot of the messages of all cross-checks: `UPDATE=1 pytest tests/resolve/rules/test_wording.py`.

Every check is made to fail by at least one of the cases, so none is there that cannot.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from neoxargs.base.problems import Problems, render
from neoxargs.resolve import derive
from neoxargs.resolve.rules import CHECKS
from neoxargs.resolve.rules.rule import Rule
from tests.support.configure import configure

SNAPSHOT = Path(__file__).with_name("wording.txt")
NO_BATCH = "train_micro_batch_size_per_gpu"

PAIRS = "train_impl: dpo, dataset_impl: pairwise, pos_train_data_paths: [a], neg_train_data_paths: [b], data_path: null"


def rated(**changes: str) -> str:
    """Return the settings of KTO, with changes."""
    paths = {
        f"{split}_{kind}": f"[{name}]"
        for split in ("train", "valid", "test")
        for kind, name in (("data_paths", "a"), ("reward_data_paths", "r"))
    }
    values = {"train_impl": "kto", "pack_impl": "unpacked", "data_path": "null", **paths, **changes}
    return f"{{{', '.join(f'{name}: {value}' for name, value in values.items())}}}"


WITHOUT_A_BATCH = "gradient_accumulation_steps: 2"
CASES = [
    "{train_batch_size: 48, train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: 2}",
    "{train_batch_size: 20, train_micro_batch_size_per_gpu: 2}",
    WITHOUT_A_BATCH,
    "{activation: swiglu, intermediate_size: 200}",
    "launcher_args: --comment='two words",
    "{activation: swiglu, intermediate_size: 180}",
    "{optimizer: {type: Adam, params: {lr: 6, betas: [0.95, 0.9], eps: 1e8}}, precision: fp16, "
    "fp16: {initial_scale_power: 65536}}",
    "{padded_vocab_size: 515, model_parallel_size: 2}",
    "deepspeed_extra_args: {comms_logger: {enabled: true, vebose: true}}",
    "deepspeed_extra_args: {comms_logger: {enabled: 3}}",
    "deepspeed_extra_args: {comms_logger: true}",
    "deepspeed_extra_args: {coms_logger: {enabled: true}}",
    "zero_optimization: {stage: 2, zenflow: {select_interval: 4}}",
    "zero_optimization: {stage: 2, zenflow: {select_strategy: epoch}}",
    "zero_optimization: {stage: 2, zenflow: {select_strategy: step, select_interval: 2, update_interval: 4}}",
    "{prescale_gradients: true, zero_optimization: {stage: 2, reduce_scatter: true}}",
    "{gradient_predivide_factor: 4, zero_optimization: {stage: 2}}",
    "{gradient_predivide_factor: 4, zero_optimization: {stage: 3, reduce_scatter: false}}",
    "{pos_emb: rotary, rope_scaling: {rope_type: longrope}}",
    "{train_micro_batch_size_per_gpu: 4, batch_size: 2}",
    "model_parallel_size: 3",
    "{model_parallel_size: 4, pipe_parallel_size: 4}",
    "{model_parallel_size: 4, num_kv_heads: 2}",
    "{num_attention_heads: 8, model_parallel_size: 8, hidden_size: 60, num_kv_heads: 8}",
    "pipe_parallel_size: 8",
    "{pipe_parallel_size: 8, no_weight_tying: false, pipe_partition_method: 'type:transformer|embedding'}",
    "{pipe_parallel_size: 2, pipe_partition_method: balanced}",
    "{pipe_parallel_size: 2, pipe_partition_method: 'type:[mlp'}",
    "{save: ~/checkpoints, checkpoint_factor: 1000}",
    "{train_iters: 1000, lr_decay_iters: 10, lr_decay_style: cosine, min_lr: 0}",
    '{attention_config: [[["mamba"], "all"]], mamba_inner_size: 129, model_parallel_size: 2}',
    '{attention_config: [[["mamba"], "all"]], lora: {rank: 8}, load: model}',
    '{attention_config: [[["mamba"], "all"]], pos_emb: rotary}',
    "{moe_num_experts: 2, moe_top_k: 4}",
    "{soft_prompt_tuning: {enabled: true, num_tokens: 64}, seq_length: 32}",
    "{soft_prompt_tuning: {enabled: true}, reset_attention_mask: true}",
    "{soft_prompt_tuning: {enabled: true}, zero_optimization: {stage: 3}}",
    "{soft_prompt_tuning: {enabled: true}, eval_tasks: [lambada_openai]}",
    "eval_tasks_interval: 100",
    "eval_prompts: [3]",
    "{attention_config: [[[rwkv], all]], head_size: 8}",
    "{attention_config: [[[rwkv], all]], dim_att: 66}",
    "{attention_config: [[[rwkv], all]], model_parallel_size: 2}",
    "{attention_config: [[[rwkv], all]], num_unique_layers: 1}",
    "lora: {rank: 8, targets: []}",
    "{lora: {rank: 8, targets: [query_key_value, v_proj]}, load: model}",
    "{lora: {rank: 8, targets: [gate_proj]}, activation: gelu, load: model}",
    "{lora: {rank: 8}, moe_num_experts: 4, load: model}",
    "{lora: {rank: 8}, num_unique_layers: 1, load: model}",
    "{lora: {rank: 8}, use_mup: true, base_shapes_file: shapes.yml, load: model}",
    "{lora: {rank: 8}, soft_prompt_tuning: {enabled: true}, load: model}",
    "lora: {rank: 8}",
    "base_checkpoint: checkpoints",
    "{lora: {rank: 8}, optimizer: {type: OneBitAdam, params: {lr: 0.001}}, load: model}",
    "{lora: {rank: 8}, zero_optimization: {stage: 3, offload_param: {device: nvme, nvme_path: swap}}, load: model}",
    "{te_layernorm_mlp: true, use_bias_in_mlp: false}",
    "{te_layernorm_mlp: true, activation: mish}",
    "{te_mha: true, use_bias_in_attn_linear: false}",
    "{te_mha: true, pos_emb: alibi}",
    '{te_mha: true, attention_config: [[["global", "local"], "all"]]}',
    "{moe_num_experts: 3, model_parallel_size: 2}",
    "{moe_num_experts: 4, moe_expert_interval: 2, num_unique_layers: 1}",
    "{moe_num_experts: 3, moe_expert_parallel_size: 2}",
    "{moe_num_experts: 6, moe_expert_parallel_size: 2, model_parallel_size: 2}",
    "{moe_num_experts: 6, moe_expert_parallel_size: 3}",
    "{moe_num_experts: 4, moe_expert_parallel_size: 2, zero_optimization: {stage: 3}}",
    "{moe_num_experts: 4, moe_expert_parallel_size: 2, zero_optimization: {stage: 1, reduce_scatter: false}}",
    "{moe_num_experts: 4, moe_expert_parallel_size: 2, zero_optimization: {stage: 2, contiguous_gradients: false}}",
    "{moe_num_experts: 4, moe_expert_parallel_size: 2, optimizer: {type: Muon, params: {lr: 0.001}}}",
    "{zero_optimization: {stage: 2}, pipe_parallel_size: 1}",
    "sequence_parallel: true",
    "{sequence_parallel: true, model_parallel_size: 4, seq_length: 30}",
    "global_num_gpus: 4",
    "{fp16: {enabled: true}, bf16: {enabled: true}}",
    "{precision: bf16, fp16: {enabled: true}}",
    "fp16: {loss_scale_window: 500}",
    "{precision: fp16, min_scale: 0.5}",
    "fp16_lm_cross_entropy: true",
    "{amp: {enabled: true}, precision: fp16}",
    "{amp: {enabled: true}, zero_stage: 1}",
    "bf16: {enabled: true, bf16_master_weights_and_grads: true}",
    "{zero_stage: 1, bf16: {enabled: true, bf16_optimizer_states: true}}",
    "{lr: 0.0006, optimizer: {type: Adam, params: {lr: 0.00015}}}",
    "optimizer: {params: {betas: [0.9, 1.0]}}",
    "{onebitadam: true, zero_stage: 1}",
    "{onebitadam: true, precision: bf16, data_types: {grad_accum_dtype: fp32}}",
    "{optimizer: {type: ZeroOneAdam}, model_parallel_size: 4, pipe_parallel_size: 2}",
    "{cpu_optimizer: true, optimizer: {type: Lion}}",
    "{clip_grad: 0.5, gradient_clipping: 1.0}",
    "{optimizer_type: sgd, optimizer: {type: Adam}}",
    "optimizer: {type: SGD, params: {betas: [0.9, 0.95]}}",
    "scheduler: {type: WarmupLR, params: {total_num_steps: 10}}",
    "zero_optimization: {stage: [0, 1]}",
    "zero_optimization: {stage: 2, offload_param: {device: cpu}}",
    "zero_optimization: {stage: 0, offload_optimizer: {device: cpu}}",
    "zero_optimization: {stage: 2, offload_optimizer: {device: nvme, nvme_path: /tmp}}",
    "zero_optimization: {stage: 3, offload_param: {device: nvme}}",
    "train_epochs: 2",
    "{train_epochs: 2, train_iters: null, data_path: [0.3, code, 0.7, web]}",
    "{lr_decay_iters: 60, lr_decay_fraction: 0.5}",
    "lr_decay_fraction: 0.001",
    "{min_lr: 0.01, lr: 0.001}",
    "{scheduler: {type: WarmupLR}, lr_decay_style: cosine, min_lr: 0}",
    "{override_lr_scheduler: true, use_checkpoint_lr_scheduler: true}",
    "{warmup: 0.1, scheduler: {type: WarmupLR, params: {warmup_num_steps: 20}}}",
    "{lr: 0.001, scheduler: {type: WarmupLR, params: {warmup_max_lr: 0.002}}}",
    "{lr_decay_iters: 50, scheduler: {type: WarmupDecayLR, params: {total_num_steps: 60}}}",
    "contiguous_checkpointing: true",
    "{checkpoint_activations: true, checkpoint_num_layers: 5}",
    "{checkpoint_activations: selective, zero_stage: 3}",
    "{compile_layers: true, zero_stage: 3}",
    "{compile_layers: true, checkpoint_activations: selective}",
    'attention_config: [[["flash"], 12]]',
    "{lr_decay_style: WSD}",
    'attention_config: [[["local", "global", "flash"], "all"]]',
    'attention_config: [["flash", 4]]',
    "attention_config: [flash]",
    "attention_config: flash",
    'attention_config: [[["flash_v9"], "all"]]',
    "attention_config: [global, global, global, globl]",
    '{sparsity: all, attention_config: [[["global"], "all"]]}',
    "{sparsity: all, seq_length: 40, max_position_embeddings: 40}",
    "{sparsity: all, sparsity_config: {blok: 8}}",
    "{sparsity: all, sparsity_config: {block: big}}",
    "{sparsity: all, sparsity_config: {block: 8}, sparse_attention: {block: 16}}",
    "{sparsity: all, sparse_attention: {num_local_blocks: 5, num_global_blocks: 2}}",
    "{sparsity: all, sparse_attention: {different_layout_per_head: true, num_different_global_patterns: 5}}",
    "{sparsity: all, sparse_attention: {num_different_global_patterns: 2}}",
    "{sparsity: all, sparsity_config: {global_block_indices: [1, 2], global_block_end_indices: [2]}}",
    "{sparsity: all, sparsity_config: {horizontal_global_attention: true}}",
    '{attention_config: [[["local"], "all"]], sparse_attention: {mode: bigbird}}',
    "sparse_attention: {mode: fixed}",
    "{pos_emb: rpe, rpe_num_buckets: 1}",
    "{pos_emb: rpe, rpe_max_distance: 16}",
    "{pos_emb: rpe, zero_stage: 3, checkpoint_activations: true, partition_activations: true, model_parallel_size: 2}",
    "{intermediate_size: 128, expansion_factor: 2}",
    "{intermediate_size: 128, mlp_type: llama}",
    "hidden_size: 66",
    '{num_kv_heads: 2, attention_config: [[["local"], "all"]]}',
    "num_kv_heads: 3",
    "seq_length: 64",
    "{pos_emb: rotary, rotary_pct: 0.7}",
    "{pos_emb: sinusoidal, hidden_size: 65, num_attention_heads: 5}",
    "num_unique_layers: 8",
    "num_unique_layers: 3",
    '{num_unique_layers: 2, param_sharing_style: spaced, attention_config: [[["local", "global"], "all"]]}',
    "{num_unique_layers: 2, checkpoint_activations: true, zero_stage: 3}",
    "{apply_residual_connection_post_layernorm: true, gpt_j_residual: true}",
    "{onnx_safe: true, bias_gelu_fusion: true}",
    '{partition_activations: true, attention_config: [[["gmlp"], "all"]]}',
    "{train_data_paths: [a, b], valid_data_paths: c, test_data_paths: d, train_data_weights: [1]}",
    "{train_data_paths: a, valid_data_paths: [c], test_data_paths: d, valid_data_weights: [1, 2]}",
    "{train_data_paths: a, valid_data_paths: c, test_data_paths: d, test_data_weights: [0]}",
    "gas: 6",
    "{zero_reduce_bucket_size: 1000, zero_optimization: {stage: 1, reduce_bucket_size: 2000}}",
    "{weight_by_num_documents: true, train_data_weights: [2, 1]}",
    "{text_path: python-stdlib, data_path: my_text_document}",
    "{train_data_paths: a, valid_data_paths: b}",
    "train_label_data_paths: a",
    "{train_data_paths: [a, b], train_label_data_paths: [c], valid_data_paths: d, test_data_paths: e}",
    "{sample_order: megatron-core, pack_impl: unpacked}",
    "{soft_prompt_tuning: {enabled: true}, pack_impl: best_fit}",
    "split: most of it",
    "split: 0, 1, 1",
    "save: out",
    "{save: checkpoints, extra_save_iters: [3, 400], train_iters: 10}",
    "save: ''",
    "{save: out, checkpoint_factor: 2.5}",
    "{save: out, checkpoint_factor: 1, checkpoint_scale: log}",
    "{save: out, checkpoint_factor: 5, save_in_background: true, "
    "zero_optimization: {stage: 3, offload_param: {device: nvme, nvme_path: /local}}}",
    "{save: out, checkpoint_factor: 5, save_in_background: true, checkpoint: {writer: {decoupled: true}}}",
    "comment: night",
    "deepspeed_extra_args: {zero_optimization: {stage: 1}}",
    "{profile_step_start: 12, profile_step_stop: 10}",
    "{sequence_parallel: true, model_parallel_size: 2, pipeline: {pipe_partitioned: true}}",
    "use_mup: true",
    "{save_base_shapes: true, mup_width_scale: 1}",
    "optimizer: {type: MuSGD}",
    "{use_mup: true, base_shapes_file: a, optimizer: {type: Lion}, init_method: small_init}",
    "{use_mup: true, base_shapes_file: a, scheduler: {type: WarmupLR}}",
    "{log_gradient_noise_scale: true, gradient_noise_scale_n_batches: 1}",
    "compression_training: {head_pruning: {shared_parameters: {enabled: true}}}",
    "data_efficiency: {data_sampling: {curriculum_learning: {enabled: true}}}",
    "data_efficiency: {data_sampling: {dynamic_batching: {enabled: true}}}",
    "curriculum_learning: {enabled: true}",
    "zero_optimization: {stage: 2, offload_optimizer: {device: cpu, ratio: 0.5}}",
    "{sliding_window_width: 8, window_attn_skip_freq: [1, 0]}",
    "{num_unique_layers: 2, sliding_window_width: 8, window_attn_skip_freq: 4}",
    "{use_qk_layernorm: true, qk_layernorm_scope: all_heads}",
    "{norm_placement: both, gpt_j_residual: true}",
    '{attn_logit_softcapping: 50, attention_config: [[["flash"], "all"]]}',
    "{pos_emb: rotary, rope_scaling: {rope_type: yarn}}",
    "{pos_emb: rotary, rope_scaling: {rope_type: llama3, factor: 8, low_freq_factor: 4}}",
    "{pos_emb: rotary, rope_scaling: {rope_type: longrope, short_factor: [1, 1]}}",
    "{train_impl: dpo, train_data_paths: [a], valid_data_paths: [a], test_data_paths: [a], data_path: null}",
    "{dataset_impl: pairwise, pack_impl: unpacked, pos_train_data_paths: [a], neg_train_data_paths: [b]}",
    f"{{{PAIRS}, pack_impl: packed}}",
    "{train_impl: dpo, dataset_impl: pairwise, pack_impl: unpacked, pos_train_data_paths: [a], data_path: null}",
    f"{{{PAIRS}, pack_impl: unpacked, pos_train_label_data_paths: [c, d], neg_train_label_data_paths: [c]}}",
    f"{{{PAIRS}, pack_impl: unpacked, pos_valid_data_paths: [a], neg_valid_data_paths: [b], "
    "pos_valid_label_data_paths: [c]}",
    f"{{{PAIRS}, pack_impl: unpacked, neg_test_data_paths: [b]}}",
    f"{{{PAIRS}, pack_impl: unpacked, loss_average: tokens, char_level_ppl: true}}",
    "{train_impl: kto, pack_impl: unpacked}",
    f"{{{PAIRS.replace('dpo', 'rm')}, pack_impl: unpacked, eod_mask_loss: true, eval_prompts: [Hello]}}",
    rated(pack_impl="pack_until_overflow"),
    rated(train_batch_size="null", train_micro_batch_size_per_gpu="3"),
    rated(train_reward_data_paths="[r, s]"),
    rated(valid_reward_data_paths="[]"),
    rated(test_reward_data_paths="[r, s]"),
]


def render_case(text: str) -> str:
    """Return the problems or warnings of a case as text."""
    try:
        return render(configure(text, without=NO_BATCH if text == WITHOUT_A_BATCH else "").warnings)
    except Problems as problems:
        return str(problems)


def test_the_wording_is_pinned() -> None:
    parts = [f"# {text}\n\n{render_case(text)}\n" for text in CASES]
    rendered = "\n".join(parts)
    if os.environ.get("UPDATE"):
        SNAPSHOT.write_text(rendered, encoding="utf-8")
    assert SNAPSHOT.read_text(encoding="utf-8") == rendered


@pytest.mark.parametrize("text", CASES)
def test_every_case_has_a_problem(text: str) -> None:
    assert "error: " in render_case(text) or "warning: " in render_case(text)


def test_every_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: set[str] = set()

    def watched(rule: Rule) -> Rule:
        def function(*values: Any) -> Any:
            answer = rule.function(*values)
            failed.update([rule.id] if answer else [])
            return answer

        return rule._replace(function=function)

    watching = [watched(rule) for rule in CHECKS]
    complete = derive.complete
    monkeypatch.setattr(
        "tests.support.configure.complete", lambda draft, gpus, **more: complete(draft, gpus, checks=watching, **more)
    )
    for text in CASES:
        render_case(text)
    assert {rule.id for rule in CHECKS} == failed

"""Snapshot of the messages of all rules: `UPDATE=1 pytest tests/resolve/rules/test_wording.py`.

Each rule's first message is that of its example; CASES have the others.
"""

from __future__ import annotations

import os
from pathlib import Path

from neoxargs.base.problems import Problems, render
from neoxargs.commands.explain.catalogue import Example
from neoxargs.commands.explain.example import check_example
from neoxargs.resolve.rules import CHECKS, DERIVATIONS
from neoxargs.resolve.rules.rule import Rule
from tests.support.configure import configure

SNAPSHOT = Path(__file__).with_name("wording.txt")
NO_BATCH = "train_micro_batch_size_per_gpu"

PAIRS = "train_impl: dpo, dataset_impl: pairwise, pos_train_data_paths: [a], neg_train_data_paths: [b], data_path: null"


WITHOUT_A_BATCH = ("gradient_accumulation_steps: 2", "train_batch_size: 4")
CASES = [
    *WITHOUT_A_BATCH,
    "lr_schedule: [{style: linear, until: 10, from: 0, to: 0.001}, {style: cosine, until: 1, to: 0.0001}]",
    "lr_schedule: [{style: cosine, until: 1, to: 0.0001}]",
    "{data_path: [3, a, 1, b], train_data_mixture: [{until: 10, weights: [1, 1]}, {until: 20%, weights: [1, 2]}]}",
    "{data_path: [a, b], train_data_mixture: [{until: 100, weights: [1, 1]}, {weights: [1, 2]}]}",
    "{data_path: [a, b], weight_by_num_documents: true, train_data_mixture: [{weights: {a: 1, b: 2}}]}",
    "{train_batch_size: 48, train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: 2}",
    "{hidden_size: 2048, num_attention_heads: 17, pos_emb: rotary, rotary_pct: 1}",
    "{hidden_size: 60, num_attention_heads: 8}",
    "{hidden_size: 67, num_attention_heads: 4}",
    "{hidden_size: 100000000000000000001, num_attention_heads: 9}",
    "{num_attention_heads: 12, num_kv_heads: 3, hidden_size: 96, model_parallel_size: 2}",
    'attention_config: [[["flash"], -1], [["flash"], 5]]',
    'attention_config: [[[], "all"]]',
    "{precision: fp32, fp16: {enabled: true}}",
    "{precision: fp16, fp16: {enabled: false}}",
    "{precision: bf16, bf16: {enabled: false}}",
    "{fp16: {type: bfloat16, enabled: true}, precision: fp16}",
    "{train_batch_size: 20, train_micro_batch_size_per_gpu: 2}",
    "{optimizer: {type: Adam, params: {lr: 6, betas: [0.95, 0.9], eps: 1e8}}, precision: fp16, "
    "fp16: {initial_scale_power: 65536}}",
    "deepspeed_extra_args: {comms_logger: {enabled: 3}}",
    "deepspeed_extra_args: {comms_logger: true}",
    "deepspeed_extra_args: {coms_logger: {enabled: true}}",
    "zero_optimization: {stage: 2, zenflow: {select_strategy: epoch}}",
    "{gradient_predivide_factor: 4, zero_optimization: {stage: 2}}",
    "{gradient_predivide_factor: 4, zero_optimization: {stage: 3, reduce_scatter: false}}",
    "{pos_emb: rotary, rope_scaling: {rope_type: longrope}}",
    "{train_micro_batch_size_per_gpu: 4, batch_size: 2}",
    "model_parallel_size: 3",
    "{model_parallel_size: 4, pipe_parallel_size: 4}",
    "{pipe_parallel_size: 8, no_weight_tying: false, pipe_partition_method: 'type:transformer|embedding'}",
    "{pipe_parallel_size: 2, pipe_partition_method: 'type:[mlp'}",
    "{attention_config: [[[rwkv], all]], dim_att: 66}",
    '{te_mha: true, attention_config: [[["global", "local"], "all"]]}',
    "{moe_num_experts: 6, moe_expert_parallel_size: 2, model_parallel_size: 2}",
    "{moe_num_experts: 6, moe_expert_parallel_size: 3, context_parallel_size: 2}",
    "{moe_num_experts: 4, moe_expert_parallel_size: 2, zero_optimization: {stage: 2, contiguous_gradients: false}}",
    "{moe_num_experts: 4, moe_expert_parallel_size: 2, optimizer: {type: Muon, params: {lr: 0.001}}}",
    "{fp16: {enabled: true}, bf16: {enabled: true}}",
    "fp16_lm_cross_entropy: true",
    "{amp: {enabled: true}, precision: fp16}",
    "{zero_stage: 1, bf16: {enabled: true, bf16_optimizer_states: true}}",
    "{lr: 0.0006, optimizer: {type: Adam, params: {lr: 0.00015}}}",
    "{onebitadam: true, precision: bf16, data_types: {grad_accum_dtype: fp32}}",
    "{cpu_optimizer: true, optimizer: {type: Lion}}",
    "{clip_grad: 0.5, gradient_clipping: 1.0}",
    "{optimizer_type: sgd, optimizer: {type: Adam}}",
    "zero_optimization: {stage: 2, offload_optimizer: {device: nvme, nvme_path: /tmp}}",
    "{train_epochs: 2, train_iters: null, data_path: [0.3, code, 0.7, web]}",
    "lr_decay_fraction: 0.001",
    "{scheduler: {type: WarmupLR}, lr_decay_style: cosine, min_lr: 0}",
    "{warmup: 0.1, scheduler: {type: WarmupLR, params: {warmup_num_steps: 20}}}",
    "{lr_decay_iters: 50, scheduler: {type: WarmupDecayLR, params: {total_num_steps: 60}}}",
    "{lr_decay_style: WSD}",
    'attention_config: [[["local", "global", "flash"], "all"]]',
    'attention_config: [["flash", 4]]',
    "attention_config: flash",
    'attention_config: [[["flash_v9"], "all"]]',
    '{sparsity: all, attention_config: [[["global"], "all"]]}',
    "{sparsity: all, sparsity_config: {blok: 8}}",
    "{sparsity: all, sparsity_config: {block: big}}",
    "{sparsity: all, sparse_attention: {different_layout_per_head: true, num_different_global_patterns: 5}}",
    "{sparsity: all, sparse_attention: {num_different_global_patterns: 2}}",
    "{pos_emb: rpe, rpe_num_buckets: 1}",
    "{intermediate_size: 128, mlp_type: llama}",
    '{num_kv_heads: 2, attention_config: [[["local"], "all"]]}',
    "num_unique_layers: 8",
    "{train_data_paths: a, valid_data_paths: c, test_data_paths: d, test_data_weights: [0]}",
    "{zero_reduce_bucket_size: 1000, zero_optimization: {stage: 1, reduce_bucket_size: 2000}}",
    "{train_data_paths: [a, b], train_label_data_paths: [c], valid_data_paths: d, test_data_paths: e}",
    "{soft_prompt_tuning: {enabled: true}, pack_impl: best_fit}",
    "split: most of it",
    "save: out",
    "{save: out, checkpoint_factor: 1, checkpoint_scale: log}",
    "{save: out, checkpoint_factor: 5, save_in_background: true, "
    "zero_optimization: {stage: 3, offload_param: {device: nvme, nvme_path: /local}}}",
    "{save: out, checkpoint_factor: 5, save_in_background: true, checkpoint: {writer: {decoupled: true}}}",
    "comment: night",
    "{save_base_shapes: true, mup_width_scale: 1}",
    "optimizer: {type: MuSGD}",
    "{use_mup: true, base_shapes_file: a, scheduler: {type: WarmupLR}}",
    "{dataset_impl: pairwise, pack_impl: unpacked, pos_train_data_paths: [a], neg_train_data_paths: [b]}",
    f"{{{PAIRS}, pack_impl: unpacked, pos_train_label_data_paths: [c, d], neg_train_label_data_paths: [c]}}",
    f"{{{PAIRS}, pack_impl: unpacked, pos_valid_data_paths: [a], neg_valid_data_paths: [b], "
    "pos_valid_label_data_paths: [c]}",
    f"{{{PAIRS}, pack_impl: unpacked, loss_average: tokens, char_level_ppl: true}}",
    f"{{{PAIRS.replace('dpo', 'rm')}, pack_impl: unpacked, eod_mask_loss: true, eval_prompts: [Hello]}}",
    "{train_impl: kto, pack_impl: pack_until_overflow, train_data_paths: a, train_reward_data_paths: r, "
    "valid_data_paths: a, valid_reward_data_paths: r, test_data_paths: a, test_reward_data_paths: r}",
]


def render_case(text: str) -> str:
    """Return the problems or warnings of a case as text."""
    try:
        return render(configure(text, without=NO_BATCH if text in WITHOUT_A_BATCH else "").warnings)
    except Problems as problems:
        return str(problems)


def render_example(rule: Rule) -> str:
    return render([found for found in check_example(Example(rule.example)) if found.id == rule.id])


def test_the_wording_is_pinned() -> None:
    rules = {f"{rule.id}\n{rule.example}": render_example(rule) for rule in (*CHECKS, *DERIVATIONS) if rule.example}
    found = rules | {f"{text}\n": render_case(text) for text in CASES}
    assert all("error: " in text or "warning: " in text for text in found.values())
    rendered = "\n".join(f"# {name}\n{text}\n" for name, text in found.items())
    if os.environ.get("UPDATE"):
        SNAPSHOT.write_text(rendered, encoding="utf-8")
    assert SNAPSHOT.read_text(encoding="utf-8") == rendered

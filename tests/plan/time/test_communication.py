"""Messages of a micro batch, counted by hand; bench/plan_against_trace.py compares them with the model's calls."""

from __future__ import annotations

from collections import Counter

from neoxargs.config.config import Config
from neoxargs.plan.given.assumptions import Assumptions
from neoxargs.plan.memory.activation_sizes import ActivationSizes
from neoxargs.plan.memory.stages import pipeline_stages
from neoxargs.plan.time.communication import (
    Messages,
    context_messages,
    expert_messages,
    pipeline_messages,
    tensor_messages,
)
from tests.support.small_gpt import small

ROWS, HIDDEN = 64, 2 * 16 * 32 * 2
BATCH = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8, "world_size": 4}
LOSS = {("all_reduce", 2 * 16 * 4): 1, ("all_reduce", 2 * 16 * 8): 1}


def configuration(**changes: object) -> Config:
    return small(**{**BATCH, "precision": "bfloat16", "model_parallel_size": 2, **changes})


def of_tensor_ranks(config: Config) -> list[Messages]:
    return [tensor_messages(ActivationSizes(config), stage, ROWS) for stage in pipeline_stages(config, ROWS)]


def between_stages(config: Config) -> list[Messages]:
    return [pipeline_messages(ActivationSizes(config), stage) for stage in pipeline_stages(config, ROWS)]


def test_a_layer_has_two_sums_in_each_direction() -> None:
    assert of_tensor_ranks(configuration()) == [Counter({("all_reduce", HIDDEN): 2 * 4 + 2, **LOSS})]


def test_norms_over_all_heads_sum_the_squares_of_queries_and_of_keys() -> None:
    norms = {"norm": "rmsnorm", "use_qk_layernorm": True, "qk_layernorm_scope": "all_heads"}
    squares = "all_reduce", 2 * 16 * 4
    plain, normed = of_tensor_ranks(configuration())[0], of_tensor_ranks(configuration(**norms))[0]
    assert normed - plain == Counter({squares: 2 * 2 * 2})
    again = of_tensor_ranks(configuration(**norms, checkpoint_activations=True))[0]
    assert again[squares] == normed[squares] + 2 * 2  # type: ignore[index]


def test_parallel_attention_and_feed_forward_share_a_sum() -> None:
    assert of_tensor_ranks(configuration(gpt_j_residual=True)) == [Counter({("all_reduce", HIDDEN): 2 * 3 + 2, **LOSS})]


def test_recomputation_repeats_the_sums_of_the_forward_pass_but_the_last_of_each_group() -> None:
    again = {"checkpoint_activations": True}
    assert of_tensor_ranks(configuration(**again))[0]["all_reduce", HIDDEN] == 2 * 5 + 2  # type: ignore[index]
    dropout = configuration(**again, hidden_dropout=0.1)
    assert of_tensor_ranks(dropout)[0]["all_reduce", HIDDEN] == 2 * 6 + 2  # type: ignore[index]
    one_group = configuration(**again, checkpoint_num_layers=2)
    assert of_tensor_ranks(one_group)[0]["all_reduce", HIDDEN] == 2 * 6 - 1 + 2  # type: ignore[index]


def test_sequence_parallelism_gathers_what_enters_and_scatters_what_leaves() -> None:
    [messages] = of_tensor_ranks(configuration(sequence_parallel=True))
    gathers = 2 * (2 + 2 + 2) + 2  # inputs, inputs again for the weights' gradients, gradients; embedding and loss
    assert messages == Counter({("all_gather", HIDDEN): gathers, ("reduce_scatter", HIDDEN): 2 * 4 + 2, **LOSS})


def test_stages_send_shares_and_gather_them() -> None:
    config = configuration(pipe_parallel_size=2)
    first, last = between_stages(config)
    assert first == last == Counter({("send", HIDDEN // 2): 1, ("recv", HIDDEN // 2): 1})
    one, two = of_tensor_ranks(config)
    assert one["all_gather", HIDDEN] == 2  # type: ignore[index]
    assert two["all_gather", HIDDEN] == 1  # type: ignore[index]


def test_one_tensor_parallel_rank_is_silent_and_sends_all() -> None:
    config = configuration(model_parallel_size=1, pipe_parallel_size=2)
    assert of_tensor_ranks(config) == [Counter(), Counter()]
    assert between_stages(config)[0]["send", HIDDEN] == 1  # type: ignore[index]


def test_the_loss_has_two_sums_for_each_slice_of_its_tokens() -> None:
    config = configuration()
    sizes = ActivationSizes(config, assumed=Assumptions(logits_at_once=12 * ROWS // 2))
    [messages] = (tensor_messages(sizes, stage, ROWS) for stage in pipeline_stages(config, ROWS))
    slices = {(operator, size): count for (operator, size), count in messages.items() if size < HIDDEN}
    assert slices == {("all_reduce", 12 * 4): 2, ("all_reduce", 12 * 8): 2, ("all_reduce", 8 * 4): 1,
                      ("all_reduce", 8 * 8): 1}  # fmt: skip


def of_experts(config: Config, imbalance: float = 1.0) -> list[Messages]:
    sizes = ActivationSizes(config, assumed=Assumptions(expert_imbalance=imbalance))
    return [expert_messages(sizes, stage) for stage in pipeline_stages(config, ROWS)]


def test_tokens_travel_to_their_experts_and_back_in_both_passes() -> None:
    """tests/train/parallel/test_exchange.py counts what the model sends."""
    alone: dict[str, object] = {"model_parallel_size": 1, "moe_num_experts": 8, "moe_top_k": 2}
    assert of_experts(configuration(**alone)) == [Counter()]
    alone["moe_expert_parallel_size"] = 2
    counts = "all_to_all", 8 * 8
    assert of_experts(configuration(**alone)) == [Counter({("all_to_all", 2 * HIDDEN): 2 * 4, counts: 2})]
    assert of_experts(configuration(**alone), 1.5) == [Counter({("all_to_all", 3 * HIDDEN): 2 * 4, counts: 2})]
    again = configuration(**alone, checkpoint_activations=True)
    assert of_experts(again) == [Counter({("all_to_all", 2 * HIDDEN): 2 * 6, counts: 4})]
    beside_tensor = configuration(**{**alone, "model_parallel_size": 2})
    assert of_experts(beside_tensor) == [Counter({("all_to_all", HIDDEN): 2 * 4, counts: 2})]
    in_one_stage = configuration(**alone, moe_expert_interval=2, pipe_parallel_size=2)
    assert of_experts(in_one_stage) == [Counter({("all_to_all", 2 * HIDDEN): 4, counts: 1}), Counter()]


def test_states_of_recurrent_layers_go_to_all_context_ranks() -> None:
    """In a ring a rank has two chunks, each with a state."""
    sent = {}
    for style in ("all_to_all", "ring"):
        sizes = ActivationSizes(
            configuration(
                model_parallel_size=1, context_parallel_size=4, context_parallel_style=style,
                attention_config=["mamba", "mamba"], mamba_inner_size=64,
            )
        )  # fmt: skip
        (stage,) = pipeline_stages(sizes.config, ROWS)
        sent[style] = context_messages(sizes, stage).sent(sizes)
    assert sent["ring"] == 2 * sent["all_to_all"] > 0

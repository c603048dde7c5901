"""Preference training: DPO, KTO, reward models and REINFORCE."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, NonNegative, Paths, Positive


class PostTraining(
    Group, origin="NeoX", effect="none", no_effect_reason="only REINFORCE uses it, and train.py does not support it"
):
    """Objectives of post-training, and the data that only they read."""

    train_impl: Literal["normal", "dpo", "rm", "kto", "reinforce"] = param(
        "normal",
        effect="model",
        refused={
            "reinforce": (
                "a server generates and rates its answers while the model trains, and deepy has no client for one; in "
                "GPT-NeoX it has failed with a NameError since 2025-05-09"
            )
        },
        instead=(
            "use train_impl: dpo or kto, or export the model to Hugging Face's format with `deepy export`, and "
            "continue with TRL's RLOOTrainer"
        ),
    )
    """Objective: `normal` next-token prediction, `dpo`, `kto`, a reward model (`rm`), or `reinforce`."""

    dpo_beta: Positive = param(0.1, effect="model")
    """How strongly DPO (Rafailov et al. 2023) holds the policy to the reference model; with a larger value, the policy
    stays closer."""

    dpo_fp32: bool = param(True, effect="model")
    """Computes DPO's log-probabilities from logits in fp32; if false, from logits in the model's precision."""

    dpo_reference_free: bool = param(False, effect="model")
    """Computes DPO's loss without a reference model, as if that model had no preference. Otherwise, the reference model
    is the model before the first step; its log-probabilities are computed then, and stored in the checkpoints."""

    kto_beta: Positive = param(0.1, effect="model")
    """How strongly KTO (Ethayarajh et al. 2024) holds the policy to the reference model; with a larger value, the
    policy stays closer."""

    kto_fp32: bool = param(True, effect="model")
    """Computes KTO's log-probabilities from logits in fp32; if false, from logits in the model's precision."""

    kto_desirable_weight: NonNegative = param(1.0, effect="model")
    """Weight of desirable answers, those with a positive reward, in KTO's loss."""

    kto_undesirable_weight: NonNegative = param(1.0, effect="model")
    """Weight of undesirable answers, those with a negative reward, in KTO's loss."""

    z_loss: NonNegative = param(0.0, effect="model")
    """Weight of a penalty on the squared logarithm of the softmax's denominator, which keeps logits from drifting
    (Chowdhery et al. 2022, "PaLM"). Reported losses exclude it. With `train_impl: rm`, it is the weight of the squared
    rewards in the loss, as in GPT-NeoX, which uses it for nothing else."""

    kl_impl: Literal["abs", "mse", "kl", "full"] = param("mse")
    """Estimate of the divergence from the reference model in REINFORCE: mean absolute (`abs`) or squared (`mse`)
    difference of log-probabilities, their plain difference (`kl`), or the `full` sum over the vocabulary."""

    kl_div_beta: NonNegative = param(0.1)
    """Weight of the divergence from the reference model in REINFORCE's loss."""

    fp32_reinforce: bool = param(True)
    """Computes REINFORCE's log-probabilities in fp32."""

    reinforce_leave_one_out: bool = param(False)
    """Uses the mean reward of a prompt's other samples as the baseline (RLOO)."""

    train_reward_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the reward files of `train_data_paths`, for KTO: one number per document, positive for a desirable
    answer and negative for an undesirable one. The number multiplies `kto_beta`."""

    valid_reward_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the reward files of `valid_data_paths`, for KTO."""

    test_reward_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the reward files of `test_data_paths`, for KTO."""

    pos_train_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the token files with the preferred answers for training, with `dataset_impl: pairwise`."""

    neg_train_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the token files with the rejected answers for training, in the order of `pos_train_data_paths`."""

    pos_train_label_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the label files of `pos_train_data_paths`; -100 excludes a token from the loss."""

    neg_train_label_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the label files of `neg_train_data_paths`; -100 excludes a token from the loss."""

    pos_valid_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the token files with the preferred answers for validation, with `dataset_impl: pairwise`."""

    neg_valid_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the token files with the rejected answers for validation, in the order of `pos_valid_data_paths`."""

    pos_valid_label_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the label files of `pos_valid_data_paths`."""

    neg_valid_label_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the label files of `neg_valid_data_paths`."""

    pos_test_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the token files with the preferred answers for testing, with `dataset_impl: pairwise`."""

    neg_test_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the token files with the rejected answers for testing, in the order of `pos_test_data_paths`."""

    pos_test_label_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the label files of `pos_test_data_paths`."""

    neg_test_label_data_paths: Paths | None = param(None, effect="data")
    """Prefixes of the label files of `neg_test_data_paths`."""

    online_dataserver_ips: list[str] | str = param("localhost")
    """Host or hosts that serve generated samples with `dataset_impl: online`."""

    online_dataserver_ports: list[Count] | Count = param(10000)
    """Port or ports of `online_dataserver_ips`, in the same order; one per data parallel rank."""

    serve_model_weights: bool = param(
        False,
        effect="not built",
        refused=(
            "GPT-NeoX's server shares GPU memory with a particular fork of vLLM on the same machine, and sends "
            "pickles, which can run any code"
        ),
        instead="export a saved checkpoint with `deepy export`, and serve the exported model",
    )
    """Serves the current weights to inference processes while training, for online REINFORCE."""

    weight_server_port: list[Count] | Count = param(6000)
    """Port or ports on which `serve_model_weights` listens."""

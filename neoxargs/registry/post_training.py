"""Teaching a pretrained model preferences: DPO, KTO, reward models and REINFORCE."""

from __future__ import annotations

from typing import Literal

from neoxargs.registry.declare import Group, param
from neoxargs.registry.types import Count, NonNegative, Paths


class PostTraining(Group, origin="NeoX"):
    """Objectives after pretraining, and the data only they read."""

    train_impl: Literal["normal", "dpo", "rm", "kto", "reinforce"] = param("normal")
    dpo_beta: NonNegative = param(0.1)
    dpo_fp32: bool = param(True)
    dpo_reference_free: bool = param(False)
    kto_beta: NonNegative = param(0.1)
    kto_fp32: bool = param(True)
    kto_desirable_weight: NonNegative = param(1.0)
    kto_undesirable_weight: NonNegative = param(1.0)
    z_loss: NonNegative = param(0.0)
    kl_impl: Literal["abs", "mse", "kl", "full"] = param("mse")
    kl_div_beta: NonNegative = param(0.1)
    fp32_reinforce: bool = param(True)
    reinforce_leave_one_out: bool = param(False)
    train_reward_data_paths: Paths | None = param(None)
    valid_reward_data_paths: Paths | None = param(None)
    test_reward_data_paths: Paths | None = param(None)
    pos_train_data_paths: Paths | None = param(None)
    neg_train_data_paths: Paths | None = param(None)
    pos_train_label_data_paths: Paths | None = param(None)
    neg_train_label_data_paths: Paths | None = param(None)
    pos_valid_data_paths: Paths | None = param(None)
    neg_valid_data_paths: Paths | None = param(None)
    pos_valid_label_data_paths: Paths | None = param(None)
    neg_valid_label_data_paths: Paths | None = param(None)
    pos_test_data_paths: Paths | None = param(None)
    neg_test_data_paths: Paths | None = param(None)
    pos_test_label_data_paths: Paths | None = param(None)
    neg_test_label_data_paths: Paths | None = param(None)
    online_dataserver_ips: list[str] | str = param("localhost")
    online_dataserver_ports: list[Count] | Count = param(10000)
    serve_model_weights: bool = param(False)
    weight_server_port: list[Count] | Count = param(6000)

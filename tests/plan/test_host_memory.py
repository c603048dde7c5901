"""Host memory of published runs that offload: what was used, and what did not suffice."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

import pytest

from neoxargs.base import record
from neoxargs.base.text import GIB
from neoxargs.hosts.device_table import DEVICES
from neoxargs.hosts.hosts import assumed_resources
from neoxargs.plan.estimate import Plan, make_plan
from neoxargs.plan.given.assumptions import DEFAULT, Assumptions
from neoxargs.plan.given.errors import odds
from neoxargs.plan.given.placement import group_into_hosts
from neoxargs.plan.given.target import Target
from neoxargs.resolve import File, complete, draft
from neoxargs.runs.run_spec import RunSpec
from tests.support.paths import REFERENCE

LLAMA = {"norm": "rmsnorm", "activation": "swiglu", "pos_emb": "rotary", "no_weight_tying": True,
         "use_bias_in_attn_linear": False, "use_bias_in_mlp": False}  # fmt: skip
Row = dict[str, str]


def rows() -> list[Row]:
    with (REFERENCE / "host_memory.tsv").open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines, delimiter="\t"))


def plan_of(row: Row, **assume: float) -> Plan:
    count = {name: int(row[name]) for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "gpus", "tp")}
    gated = not row["model"].startswith(("GPT", "ChatGLM"))
    in_memory = {"device": "cpu", "pin_memory": row["pin"] == "1"}
    changes = {
        "num_layers": count["layers"], "hidden_size": count["hidden"], "num_attention_heads": count["heads"],
        "num_kv_heads": count["kv_heads"], "intermediate_size": count["ffn"] * (3 if gated else 1),
        "padded_vocab_size": -(-count["vocab"] // count["tp"]) * count["tp"], "seq_length": 2048,
        "max_position_embeddings": 2048, "model_parallel_size": count["tp"], "pipe_parallel_size": 0,
        "train_micro_batch_size_per_gpu": 1, "precision": "fp16", "train_iters": 100,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-4}}, **(LLAMA if gated else {}),
        "zero_optimization": {
            "stage": int(row["stage"]), "sub_group_size": int(row["sub_group"]), "offload_optimizer": in_memory,
            **({"offload_param": in_memory} if row["param"] == "cpu" else {}),
        },
    }  # fmt: skip
    config = complete(draft([File("row.yml", json.dumps(changes))], []), count["gpus"])
    resources = record.replace(assumed_resources(count["gpus"]), device="cuda")
    resources = group_into_hosts(resources, count["gpus"] // int(row["hosts"]))
    memory = None if row["outcome"] == "measured" else int(float(row["gib"]) * GIB)
    assumed = Assumptions(**{"pinned_rounding": int(row["rounds"]), **assume})
    return make_plan(RunSpec(config, resources), Target(DEVICES["A100-80GB"], memory, assumed=assumed))


@dataclass
class Compared:
    row: Row
    planned: float
    """GiB."""

    @property
    def ratio(self) -> float:
        return self.planned / float(self.row["gib"])


def compare(**assume: float) -> list[Compared]:
    found = []
    for row in rows():
        plan = plan_of(row, **assume)
        parts = max(plan.stage_memory, key=lambda rank: rank.host_peak).host
        state = plan.ranks_per_host * (parts["offloaded"] + parts["rounding"])
        found.append(Compared(row, (state if row["what"] == "state" else plan.host_peak) / GIB))
    return found


def error(compared: list[Compared]) -> float:
    """The smallest factor that holds the errors of 80 % of the measured runs, with the same weight for every source."""
    sources = Counter(each.row["source"] for each in compared)
    errors = sorted((abs(math.log(each.ratio)), 1 / sources[each.row["source"]] / len(sources)) for each in compared)
    held = accumulate(weight for _, weight in errors)
    return math.exp(next(each for (each, _), share in zip(errors, held, strict=True) if share > 0.8 - 1e-9))


def measured(*sets: str, **assume: float) -> list[Compared]:
    return [each for each in compare(**assume) if each.row["outcome"] == "measured" and each.row["set"] in sets]


def test_the_interval_is_that_of_the_published_runs() -> None:
    assert round(error(measured("known", "aside")), 2) == DEFAULT.error_host


def test_the_terms_were_chosen_from_known_sources_and_hold_on_others() -> None:
    known, aside = measured("known"), measured("aside")
    assert 0.95 <= median(each.ratio for each in known) <= 1.05
    assert all(1 / 1.25 <= each.ratio <= 1.25 for each in known + aside)


@pytest.mark.parametrize("without", [{"pinned_rounding": 0}, {"pinned_tensors": 0}, {"gpu_process": 0}])
def test_without_a_term_runs_with_pinned_memory_need_more_than_planned(without: dict[str, float]) -> None:
    def ratio(**assume: float) -> float:
        found = measured("known", **assume)
        return median(each.ratio for each in found if each.row["rounds"] == each.row["pin"] == "1")

    assert ratio(**without) < 0.95 <= ratio() <= 1.05


def test_runs_that_ran_and_runs_that_were_killed() -> None:
    """Of one that was killed, the plan says that it fits: ZeRO-2 in a program that builds all models on the host."""
    sure = defaultdict(list)
    for row in rows():
        if row["outcome"] != "measured":
            plan = plan_of(row)
            fits = odds(plan.host_peak, plan.usable_host_memory, plan.host_error) > 0.9
            sure[row["outcome"], fits].append(row["source"])
    assert not sure["ran", False]
    assert [source.rpartition("/")[2] for source in sure["killed", True]] == ["912"]
    assert len(sure["killed", False]) == 7

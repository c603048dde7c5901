"""Of which types `optimizer.params` and `scheduler.params` say that they read a key, and what the types are."""

from __future__ import annotations

import inspect
from typing import get_args

from deepspeed.runtime import lr_schedules
from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS
from deepspeed.runtime.engine import DeepSpeedEngine

from neoxargs.registry import REGISTRY
from tests.support.deepspeed_optimizers import CLASSES, MUON, MUP, NEOX, TYPES, WRITTEN_OUT
from tests.support.deepspeed_spy import version_note


def test_every_type_is_compared_and_no_other_is_named() -> None:
    assert {*CLASSES, *WRITTEN_OUT, "muon"} == set(TYPES)
    assert set(WRITTEN_OUT) == {*MUP, *NEOX} - {"cpu_adam", "cpu_torch_adam"}
    assert set(DEEPSPEED_OPTIMIZERS) <= set(TYPES), version_note()


def test_the_engine_looks_for_the_keys_of_muon() -> None:
    source = inspect.getsource(DeepSpeedEngine._configure_basic_optimizer)
    assert {key for key in MUON if f'"{key}"' not in source} == set(), version_note()


def test_deepspeeds_schedulers_are_the_ones_to_choose_from() -> None:
    types = get_args(get_args(REGISTRY.parameters["scheduler.type"].type)[0])
    assert set(types) == set(lr_schedules.VALID_LR_SCHEDULES), version_note()

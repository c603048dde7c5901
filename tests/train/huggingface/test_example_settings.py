"""The example settings in a file that `deepy import` writes get no warnings."""

from __future__ import annotations

import json

from neoxargs.resolve.trainer_support.no_effect import no_effect_warnings
from neoxargs.train.huggingface.importing import TRAINING
from tests.support.configure import SHAPE, configure


def test_the_example_settings_have_an_effect_without_further_ones() -> None:
    ours = {name: value for name, value in TRAINING.items() if name not in SHAPE}
    assert list(no_effect_warnings(configure(json.dumps(ours)), [])) == []

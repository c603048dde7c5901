"""The steps of "An optimizer" and "A loss" in docs/extending.md, followed in a copy, end with tests that pass.

The optimizer is AdaBelief (Zhuang et al. 2020, arXiv:2010.07468): Adam with the squared deviations of the gradient from
its running mean. The loss is that of IPO (Azar et al. 2023, arXiv:2310.12036, equation 17).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.checkout import copied, replace, run
from tests.support.paths import DOCS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


#: As the page writes numbers.
NUMBERS = {3: "three", 5: "five"}


class Addition(NamedTuple):
    """What is added as a section of the page says, how it is tested, and faults that the tests find."""

    section: str
    changes: dict[str, dict[str, str]]
    """Files -> what stands there -> what replaces it; {"": text} makes a file."""
    tests: dict[str, str]
    """New test files."""
    also: tuple[str, ...]
    """Arguments of pytest for tests of the repository that the addition joins by itself."""
    faults: dict[str, tuple[str, str, str]]
    """Name -> a file of the addition, what stands there, and what is planted."""
    rows: dict[str, dict[str, str]] = {}
    """Changes of existing tests."""


OPTIMIZER = Addition(
    "An optimizer",
    {
        "neoxargs/facts/optimizers.py": {
            '    "Lion": Opt': '    "AdaBelief": OptimizerKind(divides_experts=True),\n    "Lion": Opt',
        },
        "neoxargs/train/optim/lion_sm3_madgrad.py": {
            "def _lion(": '''class AdaBelief(_PerTensor):
    """AdaBelief: Adam with the squared deviations of gradients from their running mean. arXiv:2010.07468, algorithm 2,
    with decoupled weight decay."""

    def __init__(self, groups: Any, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    def update(self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        (beta1, beta2), lr = group["betas"], group["lr"]
        if not state:
            state.update(step=0, mean=torch.zeros_like(weight), deviations=torch.zeros_like(weight))
        state["step"] += 1
        mean = state["mean"].lerp_(gradient, 1 - beta1)
        squares = state["deviations"].lerp_((gradient - mean).square(), 1 - beta2).add_(group["eps"])
        corrected = (squares / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        weight.mul_(1 - lr * group["weight_decay"])
        weight.addcdiv_(mean / (1 - beta1 ** state["step"]), corrected, value=-lr)


def _adabelief(groups: list[dict[str, Any]], params: OptimizerParams) -> Optimizer:
    beta1, beta2 = params.betas or (0.9, 0.999)
    return AdaBelief(groups, params.lr or 0.0, (beta1, beta2), 1e-8 if params.eps is None else params.eps)


def _lion(''',
            '    "lion": _lion,\n': '    "adabelief": _adabelief,\n    "lion": _lion,\n',
        },
        "neoxargs/train/trials/optimizers.py": {
            "def _lion(": '''def _adabelief(config: Config, *_: Any) -> Rule:
    """Zhuang et al. 2020, arXiv:2010.07468, algorithm 2."""
    params = config.optimizer_params
    (beta1, beta2), eps = params.betas or (0.9, 0.999), 1e-8 if params.eps is None else params.eps

    def rule(weight: Tensor, gradient: Tensor, state: State, lr: float, decay: float) -> Tensor:
        count = state["step"]
        mean = state["mean"] = beta1 * state.get("mean", 0) + (1 - beta1) * gradient
        squares = state["squares"] = beta2 * state.get("squares", 0) + (1 - beta2) * (gradient - mean) ** 2 + eps
        update: Tensor = mean / (1 - beta1**count) / ((squares / (1 - beta2**count)).sqrt() + eps)
        return weight - lr * (update + decay * weight)

    return rule


def _lion(''',
            '    "lamb": _lamb,': '    "adabelief": _adabelief, "lamb": _lamb,',
        },
    },
    {},
    ("tests/train/trials/test_optimizers.py", "tests/facts/test_optimizers.py",
     "tests/train/optim/test_on_every_path.py", "-k", "belief"),
    {
        "the sign of the step": (
            "neoxargs/train/optim/lion_sm3_madgrad.py", "state[\"step\"]), corrected, value=-lr)",
            "state[\"step\"]), corrected, value=lr)",
        ),
        "the size of the state": (
            "neoxargs/facts/optimizers.py", '"AdaBelief": OptimizerKind(', '"AdaBelief": OptimizerKind(1, ',
        ),
    },
    {
        "tests/train/optim/test_on_every_path.py": {'    "SGD": 1.0,': '    "AdaBelief": 0.05, "SGD": 1.0,'},
        "tests/train/trials/test_optimizers.py": {
            '    "adam": {"': '    "adabelief": {"betas": [0.8, 0.9], "eps": 1e-3},\n    "adam": {"',
        },
    },
)  # fmt: skip
LOSS = Addition(
    "A loss",
    {
        "neoxargs/registry/post_training.py": {
            '"kto", "reinforce"] = param(': '"kto", "ipo", "reinforce"] = param(',
            "    kto_beta: Positive = param(": '    ipo_beta: Positive = param(0.1, ours=True, effect="model")\n'
            '    """How strongly IPO (Azar et al. 2023) holds the policy to the reference model."""\n\n'
            "    kto_beta: Positive = param(",
        },
        "neoxargs/facts/objectives.py": {
            '    "kto": Objective(': '    "ipo": Objective(pairs=True, reference=True),\n    "kto": Objective(',
        },
        "neoxargs/resolve/effects/switched_off.json": {
            '  {"off": ["dpo_*"],': '  {"off": ["ipo_*"], "when": {"train_impl": {"is not": ["ipo"]}},\n'
            '   "because": "train_impl is not ipo", "instead": "set train_impl: ipo"},\n  {"off": ["dpo_*"],',
            '{"is": ["dpo", "kto"]}': '{"is": ["dpo", "ipo", "kto"]}',
        },
        "neoxargs/train/losses/ipo.py": {
            "": '''"""The loss of IPO (Azar et al. 2023, arXiv:2310.12036, equation 17)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from neoxargs.train.losses.dpo import DpoLoss


@dataclass(frozen=True)
class IpoLoss(DpoLoss):
    """(difference of the log-ratios of chosen and rejected answer - 1 / (2 beta)) squared, the mean over the pairs."""

    def of_margins(self, margin_P: Tensor) -> Tensor:
        return ((margin_P - 0.5) / self.beta).square().mean()
''',
        },
        "neoxargs/train/losses/objective.py": {
            "import dpo, kto, reward_model": "import dpo, ipo, kto, reward_model",
            '"kto": kto.MEASURES,': '"ipo": dpo.MEASURES, "kto": kto.MEASURES,',
            '    if options.train_impl == "kto":\n': '    if options.train_impl == "ipo":\n'
            '        return ipo.IpoLoss(**{**fields, "half": False}, beta=options.ipo_beta)\n'
            '    if options.train_impl == "kto":\n',
        },
    },
    {
        "tests/train/losses/test_ipo.py": '''"""The losses of IPO on every layout are those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from neoxargs.resolve.effects.switched_off import switched_off_by
from tests.support import preference
from tests.support.configure import configure
from tests.support.huggingface import SEQ
from tests.support.preference_runs import PAIRS, llama, on_every_layout

BETA, RATE = 2.0, 1e-5


def of_ipo(differences: Tensor) -> Tensor:
    return (differences - 1 / (2 * BETA)).square().mean()


@pytest.mark.shows("ipo_beta")
def test_steps_on_every_layout_are_those_of_transformers(tmp_path: Path) -> None:
    model, ours = llama(tmp_path)
    expected = preference.steps_on_pairs(model, preference.written(tmp_path, PAIRS, SEQ), 4, of_ipo, RATE)
    assert expected[0] == pytest.approx(1 / (2 * BETA) ** 2)
    values = preference.settings(tmp_path) | {"train_impl": "ipo", "ipo_beta": BETA, "dpo_beta": 0.1}
    values["optimizer"] = f"{{type: SGD, params: {{lr: {RATE}}}}}"
    alone = on_every_layout(tmp_path, ours, expected[:3], **values)
    assert alone["loss"] == pytest.approx(expected[3], abs=3e-6)


def test_nothing_else_reads_its_parameter() -> None:
    assert switched_off_by(configure("ipo_beta: 0.3"), "ipo_beta") is not None
''',
    },
    ("tests/registry/test_declarations.py", "tests/registry/test_effects.py", "tests/resolve/effects",
     "tests/resolve/compare/test_continuing.py", "tests/checks/test_trainer.py", "-k", "not explain"),
    {
        "the sign of the margin": (
            "neoxargs/train/losses/ipo.py", "(margin_P - 0.5)", "(margin_P + 0.5)",
        ),
    },
)  # fmt: skip


@pytest.mark.parametrize("added", [OPTIMIZER, LOSS], ids=["optimizer", "loss"])
def test_the_steps_end_with_tests_that_pass_and_find_faults(added: Addition, tmp_path: Path) -> None:
    page = (DOCS / "extending.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {added.section}\n")[2].partition("\n## ")[0]
    assert f" {NUMBERS[len(added.changes)]} files" in section
    folder = copied(tmp_path / "checkout")
    for name, changes in added.changes.items():
        assert name.removeprefix("neoxargs/").replace("ipo", "NAME") in section
        replace(folder / name, changes)
    for name, changes in (added.rows | {name: {"": text} for name, text in added.tests.items()}).items():
        replace(folder / name, changes)
    run(folder, "deepy.py", "docs")
    run(folder, "-m", "pytest", "-n", "2", *added.tests, *added.also)
    for name, (file, right, wrong) in added.faults.items():
        replace(folder / file, {right: wrong})
        with pytest.raises(AssertionError, match="1 failed"):
            run(folder, "-m", "pytest", "-n", "0", "-x", *added.tests, *added.also)
            pytest.fail(f"nothing finds a fault in {name}")
        replace(folder / file, {wrong: right})

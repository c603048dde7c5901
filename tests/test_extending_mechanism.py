"""The steps of "A mechanism of attention" in docs/extending.md, followed in a copy, end with tests that pass.

The mechanism is attention sinks: a learned logit of each query head that joins the denominator of its softmax. GPT-OSS
(arXiv:2508.10925) and IBM's Granite SWA have them; the family is the latter, a Llama in all else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkout import copied, insert, replace, run
from tests.support.paths import DOCS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: Step 1 to 3: file -> what stands there, and what replaces it.
MECHANISM: dict[str, dict[str, str]] = {
    "neoxargs/registry/model.py": {
        "    use_bias_in_attn_linear: bool = param(True)":
        "    attention_sinks: bool = param(False, ours=True)\n"
        '    """Gives each query head a learned logit that joins the denominator of its softmax."""\n\n'
        "    use_bias_in_attn_linear: bool = param(True)",
    },
    "neoxargs/facts/attention.py": {
        "    return weights\n":
        "    if config.attention.attention_sinks:\n"
        '        weights.append(Tensor("scores.sinks", config.shape.num_attention_heads))\n'
        "    return weights\n",
        "    divisor: int = 1\n": "    sinks: bool = False\n    divisor: int = 1\n",
        "        return not self.softcap\n": "        return not (self.softcap or self.sinks)\n",
        "        return ScoreRule(softcap)": "        return ScoreRule(softcap, attention.attention_sinks)",
        "        softcap,\n": "        softcap,\n        attention.attention_sinks,\n",
        '        "bounded scores":': '        "sinks": config.attention.attention_sinks,\n        "bounded scores":',
    },
    "neoxargs/train/model/scores.py": {
        "        self.tensor = weights.ranks.tensor\n":
        "        self.tensor = weights.ranks.tensor\n"
        "        heads = (config.shape.num_attention_heads,)\n"
        '        self.sinks = weights.parameter("sinks", heads, zeros, split=0) if self.rule.sinks else None\n',
        "        return context_BNSH\n\n    def in_flex":
        "        return self._with_sinks(context_BNSH, scores_BNSC.logsumexp(-1))\n\n"
        "    def _with_sinks(self, context_BNSH: Tensor, sum_BNS: Tensor) -> Tensor:\n"
        '        """Scale by what the sink leaves of the softmax. sum_BNS: logarithm of its denominator."""\n'
        "        if self.sinks is None:\n            return context_BNSH\n"
        "        share_BNS = (sum_BNS - self.sinks.float()[:, None]).sigmoid()\n"
        "        return context_BNSH * share_BNS.unsqueeze(-1).to(context_BNSH.dtype)\n\n"
        "    def in_flex",
        "        context_BNSH: Tensor = flex.kernel(": "        context_BNSH, sums = flex.kernel(",
        "query_BNSH.shape[1],\n        )\n        return context_BNSH\n":
        "query_BNSH.shape[1],\n            return_aux=AuxRequest(lse=self.sinks is not None),\n        )\n"
        "        return self._with_sinks(context_BNSH, sums.lse)\n",
        "from torch import Tensor, nn\n":
        "from torch import Tensor, nn\nfrom torch.nn.attention.flex_attention import AuxRequest\n",
        "from neoxargs.train.parallel.layers": "from neoxargs.train.parallel.init import zeros\n"
        "from neoxargs.train.parallel.layers",
    },
}  # fmt: skip
#: Step 4.
FAMILY = '''"""Granite SWA: a LLaMA with windows and sinks. The multipliers of its other models must be 1."""

from __future__ import annotations

from dataclasses import replace

from neoxargs.convert.huggingface.families.llama import CONSTANTS, DEMANDS, LLAMA, WEIGHTS, decoder_settings
from neoxargs.convert.huggingface.family import OMIT, Fixed, Setting, Values, Weights
from neoxargs.convert.huggingface.settings import COMMON_FIXED, kv_heads, requires, same, weight_tying
from neoxargs.convert.huggingface.windows import FULL, LAYER_WINDOWS, SLIDING, windows
from neoxargs.facts.attention import head_dim


def _windows(keys: Values) -> Values:
    types = [SLIDING if layer % 4 else FULL for layer in range(keys.get("num_hidden_layers", 24))]
    return windows(keys.get("sliding_window", 128), keys.get("layer_types") or types)


SINKS = {"attention_sinks": True}
GRANITE_SWA = replace(
    LLAMA,
    architecture="GraniteSWAForCausalLM",
    model_type="granite_swa",
    settings=(
        *(
            row for row in decoder_settings(
                hidden_size=2560, intermediate_size=8192, num_hidden_layers=24, num_attention_heads=20,
                max_position_embeddings=8192, rms_norm_eps=1e-5,
            ) if row.key != "tie_word_embeddings"
        ),
        weight_tying(True), kv_heads(4),
        same("attention_bias", "use_bias_in_attn_linear", False), same("mlp_bias", "use_bias_in_mlp", False),
        same("embedding_multiplier", "embedding_multiplier", 1.0),
        Setting(
            "attention_multiplier", ("softmax_scale",), 1.0,
            lambda config: config.attention.softmax_scale or head_dim(config.shape) ** -0.5,
            lambda value: {"softmax_scale": float(value)},
        ),
        # A rotary base of each layer, of which only equal ones have a parameter here.
        Setting(
            "layer_rope_theta", ("rotary_emb_base",), None, lambda config: OMIT,
            lambda value: {} if not value else {"rotary_emb_base": value[0]} if len({*value}) == 1 else None,
        ),
        *LAYER_WINDOWS,
    ),
    demands=(*DEMANDS, *requires(SINKS)),
    fixed=(*COMMON_FIXED, Fixed("residual_multiplier", (1.0,)), Fixed("logits_scaling", (1.0,))),
    constants={**CONSTANTS, **SINKS},
    weights=(*WEIGHTS, Weights("layers.{}.attention.scores", ("layers.{}.self_attn",), kinds=("sinks",))),
    from_keys=_windows,
)  # fmt: skip
'''
#: Step 5.
TEST = '''"""Sinks take a share of the softmax, on every path and layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neoxargs.facts.model import parameters
from neoxargs.train.model.attention import SelfAttention
from neoxargs.train.model.gpt import GPT
from neoxargs.train.model.shared import Shared
from neoxargs.train.parallel.layers import Weights
from tests.support.layouts import TENSOR, TWO_STAGES
from tests.support.small_gpt import VOCABULARY, small
from tests.support.trials import Trial, assert_same_curve, curves, staged

SEQ = 16
KINDS: dict[str, dict[str, Any]] = {"plain": {}, "windows": {"sliding_window_width": 3}, "alibi": {"pos_emb": "alibi"}}


def layer(**changes: Any) -> SelfAttention:
    made = SelfAttention(small(attention_sinks=True, num_kv_heads=2, **changes), Weights(), Shared(), 0).eval()
    torch.nn.init.normal_(made.scores.sinks)
    return made


def heads() -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, count, SEQ, 8, requires_grad=True) for count in (4, 2, 2))


def gradients(context: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return context, *torch.autograd.grad(context.square().sum(), inputs)


@pytest.mark.shows("attention_sinks")
def test_they_are_those_of_gpt_oss() -> None:
    theirs = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss").eager_attention_forward
    attention, (query, key, value) = layer(), heads()
    mask = torch.full((SEQ, SEQ), -torch.inf).triu(1)
    attention.num_key_value_groups, attention.sinks = 2, attention.scores.sinks
    context, _ = theirs(attention, query, key, value, mask, 8**-0.5)
    inputs = query, key, value, attention.scores.sinks
    ours = gradients(attention._attend(query, key, value, None, 0.0), *inputs)
    torch.testing.assert_close(ours, gradients(context.transpose(1, 2), *inputs))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kind", KINDS)
def test_flex_attention_and_steps_agree(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attention, inputs = layer(**KINDS[kind]), [part.detach() for part in heads()]
    with torch.no_grad():  # flex_attention has no backward pass on CPUs
        steps = attention._attend(*inputs, None, 0.0)
        monkeypatch.setattr(SelfAttention, "_kernel", lambda *_: "flex")
        monkeypatch.setattr(attention.scores, "in_steps", None)
        torch.testing.assert_close(attention._attend(*inputs, None, 0.0), steps)


def test_they_are_counted() -> None:
    config = small(attention_sinks=True)
    gpt = GPT(config, VOCABULARY, Weights(), Shared())
    assert parameters(config, VOCABULARY.padded) == sum(weight.numel() for weight in gpt.parameters())


def test_they_train_the_same_on_every_layout() -> None:
    sinks = {"attention_sinks": True, "num_kv_heads": 2, "attention_softmax_in_fp32": True}
    shards = {**TENSOR, "sequence_parallel": True}
    found = curves(
        {
            1: {"alone": Trial(sinks), "without": Trial({**sinks, "attention_sinks": False})},
            2: {
                "tp2": Trial(sinks | TENSOR), "pp2": Trial(sinks | TWO_STAGES), "shards": Trial(sinks | shards),
                "zero3": staged(3, sinks),
            },
        },
        4,
    )  # fmt: skip
    assert abs(found["alone"].train[-1] - found["without"].train[-1]) > 1e-5
    for name in ("tp2", "pp2", "shards", "zero3"):
        assert_same_curve(found[name], found["alone"], norms=1e-3)
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the repository with the changes of the steps."""
    folder = copied(tmp_path / "checkout")
    for name, changes in MECHANISM.items():
        replace(folder / name, changes)
    families = folder / "neoxargs/convert/huggingface/families"
    (families / "granite.py").write_text(FAMILY)
    imports = "from neoxargs.convert.huggingface.families.llama import LLAMA, MISTRAL\n"
    insert(
        families / "table.py", imports, "from neoxargs.convert.huggingface.families.granite import GRANITE_SWA\n", ""
    )
    insert(families / "table.py", "MIXTRAL, OLMOE, MAMBA)", "GRANITE_SWA, ", "")
    (folder / "tests/train/model/test_sinks.py").write_text(TEST)
    ours = '    "GraniteSWAForCausalLM": {**LLAMA, "attention_sinks": True, "sliding_window_width": 5},\n'
    insert(folder / "tests/convert/huggingface/test_files.py", '    "Qwen3ForCausalLM": {', ours, "")
    model = '    "Granite SWA": Case("GraniteSWA", {"sliding_window": 4, "attention_multiplier": 0.4}),\n'
    insert(folder / "tests/support/huggingface.py", '    "Qwen3": Case(', model, "")
    return folder


def test_the_steps_for_a_mechanism_end_with_tests_that_pass(checkout: Path) -> None:
    page = (DOCS / "extending.md").read_text(encoding="utf-8")
    for place in ("families/", *(name.removeprefix("neoxargs/") for name in MECHANISM)):
        assert place in page, place
    run(checkout, "deepy.py", "docs")
    run(checkout, "-m", "pytest", "-n", "2", "tests/train/model/test_sinks.py", "tests/convert/huggingface", "-k",
        "test_sinks or Granite")  # fmt: skip
    run(checkout, "-m", "pytest", "-n", "2", "tests/registry/test_declarations.py", "tests/registry/test_effects.py")

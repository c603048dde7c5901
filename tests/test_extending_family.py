"""The steps of "A family of models" in docs/extending.md, followed in a copy, end with tests that pass.

The family is OLMo (Groeneveld et al. 2024): a Llama whose norms have no weights.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkout import copied, insert, run
from tests.support.paths import DOCS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FAMILY = '''"""OLMo: a LLaMA whose norms have no weights."""

from __future__ import annotations

from neoxargs.convert.huggingface.families.llama import DEMANDS, WEIGHTS, decoder_settings, rope_theta
from neoxargs.convert.huggingface.family import Family, Fixed
from neoxargs.convert.huggingface.settings import COMMON_FIXED, kv_heads, requires, same

REQUIRED = {"norm": "non_parametric_layernorm", "layernorm_epsilon": 1e-5, "use_bias_in_mlp": False}
OLMO = Family(
    architecture="OlmoForCausalLM",
    model_type="olmo",
    prefix="model.",
    settings=(
        *(row for row in decoder_settings() if row.key not in ("rms_norm_eps", "head_dim")),
        kv_heads(None), same("attention_bias", "use_bias_in_attn_linear", False),
    ),
    demands=(
        *(row for row in DEMANDS if "norm" not in row.ours or row.ours.startswith("apply")), *requires(REQUIRED),
    ),
    fixed=(*COMMON_FIXED, Fixed("clip_qkv", (None,))),
    constants={**REQUIRED, "pos_emb": "rotary", "rotary_pct": 1.0, "hidden_dropout": 0.0},
    weights=tuple(row for row in WEIGHTS if "norm" not in row.ours),
    compatibility_keys=rope_theta,
)
'''
#: What differs from the configuration of OLMo 2 7B in that of OLMo 7B.
CHANGES = {
    "norm: rmsnorm": "norm: non_parametric_layernorm",
    "padded_vocab_size: 100352": "padded_vocab_size: 50304",
    "rotary_emb_base: 500000": "rotary_emb_base: 10000",
    "rms_norm_epsilon: 1.0e-6": "layernorm_epsilon: 1.0e-5",
    "norm_placement: after\nuse_qk_layernorm: true\nqk_layernorm_scope: all_heads\n": "",
}
COUNT = """
import torch
from transformers import OlmoConfig, OlmoForCausalLM
with torch.device("meta"):
    model = OlmoForCausalLM(OlmoConfig())
print("counted", sum(weight.numel() for weight in model.parameters()))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the repository with the changes of steps 1 to 3."""
    folder = copied(tmp_path / "checkout")
    families = folder / "neoxargs/convert/huggingface/families"
    (families / "olmo_1.py").write_text(FAMILY)
    imports = "from neoxargs.convert.huggingface.families.qwen import QWEN2, QWEN3\n"
    insert(families / "table.py", imports, "", "from neoxargs.convert.huggingface.families.olmo_1 import OLMO\n")
    insert(families / "table.py", "MIXTRAL, OLMOE, MAMBA)", "OLMO, ", "")
    config = (folder / "configs/models/olmo-2-7b.yml").read_text(encoding="utf-8")
    for before, after in CHANGES.items():
        assert before in config, before
        config = config.replace(before, after)
    (folder / "configs/models/olmo-7b.yml").write_text(config)
    counted = run(folder, "-c", COUNT).partition("counted ")[2].strip()
    with (folder / "tests/reference/published_sizes.tsv").open("a") as table:
        table.write(f"olmo-7b\t{counted}\t50304\tallenai/OLMo-7B-hf\n")
    files = folder / "tests/convert/huggingface/test_files.py"
    insert(files, '    "gpt-neox": "GPTNeoX",', '    "olmo-7b": "Olmo",\n', "")
    ours = '    "OlmoForCausalLM": {**LLAMA, "norm": "non_parametric_layernorm", "layernorm_epsilon": 1e-5},\n'
    insert(files, '    "Qwen3ForCausalLM": {', ours, "")
    model = '    "OLMo": Case("Olmo", {}),\n'
    insert(folder / "tests/support/huggingface.py", '    "Qwen3": Case(', model, "")
    return folder


def test_the_steps_for_a_family_end_with_tests_that_pass(checkout: Path) -> None:
    page = (DOCS / "extending.md").read_text(encoding="utf-8")
    for place in ("families/", "`FAMILIES`", "published_sizes.tsv", "`KINDS`", "`CHOSEN`", "`MODELS`", "`OURS`"):
        assert place in page, place
    tests = ["tests/convert/huggingface", "tests/test_configs.py"]
    chosen = "OLMo or Olmo or olmo or published_size or as_large_as_published or architecture_of_their_name"
    print(run(checkout, "-m", "pytest", "-n", "2", *tests, "-k", chosen))

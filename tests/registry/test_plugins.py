"""A plugin's parameters, choice and launcher, declared in a module outside the package.

Each command runs in a process of its own: a plugin stays loaded until its process ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.snapshots import pinned

PLUGIN = ROOT / "tests" / "plugin" / "savanna_keys.py"
YAML = """\
{num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 32, train_iters: 5, data_path: d,
 tokenizer_type: ByteLevelTokenizer, train_micro_batch_size_per_gpu: 1, num_gpus: 1, hyena-filter-width: 32}
"""
#: A fork's own training script.
SCRIPT = """\
import sys
from neoxargs.targets.wire_format import parse_rank_arguments
rank = parse_rank_arguments(sys.argv[1:])
print(rank.config.hyena.hyena_filter_order, rank.config.get("pos_emb"), rank.deepspeed["hyena_cache"])
"""
Deepy = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def deepy(tmp_path: Path) -> Deepy:
    """Run `deepy` in a folder with the plugin and my.yml; its output, errors and exit code."""
    (tmp_path / "savanna_keys.py").write_text(PLUGIN.read_text())
    (tmp_path / "my.yml").write_text(YAML)
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "deepy.py"), *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environ | more, capture_output=True, text=True, timeout=60, check=False
        )

    return run


WITH = ("--plugin", "savanna_keys")


def test_its_keys_are_checked_like_any_other(deepy: Deepy) -> None:
    pinned(deepy("check", "my.yml").stderr, "[unknown-key]")
    done = deepy("check", "my.yml", "--gpus", "1", *WITH)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "ok"), done.stderr
    wrong = deepy("check", "my.yml", "--set=hyena_mr_len=many", "--set=hyena_filtr_cls=x", *WITH).stderr
    pinned(wrong, "[type-mismatch]")
    assert "did you mean hyena_filter_cls?" in wrong


def test_it_is_explained_and_documented(deepy: Deepy, tmp_path: Path) -> None:
    answer = json.loads(deepy("explain", "hyena_filter_order", "my.yml", "--json", *WITH).stdout)
    assert answer["value"] == 32
    pinned(answer["meaning"])
    assert answer["origin"] == "plugin savanna_keys"
    assert deepy("docs", *WITH, "-o", str(tmp_path / "docs")).returncode == 0
    schema = json.loads((tmp_path / "docs" / "neoxargs.schema.json").read_text())["properties"]
    assert schema["hyena_filter_cls"]["anyOf"][0]["enum"] == ["implicit_modal", "explicit"]
    assert "xpos" in schema["pos_emb"]["anyOf"][0]["enum"]
    assert "hyena_cache.enabled" in (tmp_path / "docs" / "parameters.md").read_text()
    assert deepy("docs", *WITH).returncode == 2


def test_its_values_go_where_their_origin_says(deepy: Deepy) -> None:
    done = deepy("train.py", "my.yml", "--dry-run", "--json", "--set=hyena_cache.enabled=true", *WITH)
    answer = json.loads(done.stdout)
    assert answer["deepspeed_config"]["hyena_cache"] == {"enabled": True}
    assert answer["megatron_config"]["hyena_filter_order"] == 32
    assert answer["command"][-2:] == ["--deepy_plugins", "savanna_keys"]


def test_a_slurm_job_loads_it_too(deepy: Deepy) -> None:
    script = deepy("train.py", "my.yml", "--emit", "sbatch", "--gpus", "2", *WITH).stdout
    assert "deepy.py train.py my.yml --plugin=savanna_keys" in script


def test_its_choice_is_accepted_and_not_run_by_our_own_script(deepy: Deepy) -> None:
    done = deepy("check", "my.yml", "--gpus=1", "--set=pos_emb=XPos", *WITH)
    assert done.returncode == 0
    pinned(done.stderr, "[not-built]")
    assert deepy("train.py", "my.yml", "--dry-run", "--set=pos_emb=xpos", *WITH).returncode == 1


def test_its_launcher_starts_ranks_that_know_the_plugin(deepy: Deepy, tmp_path: Path) -> None:
    (tmp_path / "fork").mkdir()
    (tmp_path / "fork" / "train_fork.py").write_text(SCRIPT)
    given = ["fork/train_fork.py", "my.yml", "--set=launcher=here", "--set=pos_emb=xpos", "--set=master_addr=localhost",
             "--set=hyena_cache.enabled=true", *WITH]  # fmt: skip
    shown = deepy(*given, "--dry-run", DS_ACCELERATOR="cpu").stdout
    assert "env RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29500 " in shown
    assert "deepspeed.launcher" not in shown
    done = deepy(*given, DS_ACCELERATOR="cpu", RANK="0")
    assert done.stdout.splitlines()[-1] == "32 xpos {'enabled': True}", done.stderr
    refused = deepy(*given, "--emit", "runner").stderr
    assert "launcher (here) does not use DeepSpeed's runner, so it takes no runner flags" in refused


def test_an_installed_plugin_is_found(deepy: Deepy, tmp_path: Path) -> None:
    info = tmp_path / "savanna_keys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: savanna-keys\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[neoxargs.plugins]\nkeys = savanna_keys\n")
    done = deepy("explain", "hyena_mr_len", "--json", PYTHONPATH=str(tmp_path))
    assert json.loads(done.stdout)["origin"] == "plugin savanna_keys"


HEAD = "from __future__ import annotations\nfrom neoxargs.registry import Group, param\n"
CLASS = 'class {name}(Group, origin="NeoX", effect="model"):\n    {line}\n    """What it means."""\n'


@pytest.mark.parametrize("text", [
    None, "", "import nowhere.at.all", "1 / 0", HEAD + CLASS.format(name="New", line="new: int"),
    HEAD + CLASS.format(name="New", line="num_layers: int = param(1)"),
    HEAD + CLASS.format(name="New", line="hyena_mr_len: int = param(1)"),
    HEAD + CLASS.format(name="Shape", line="new: int = param(1)"),
    HEAD + CLASS.format(name="New", line="new: Nothing = param(1)"),
    HEAD + CLASS.format(name="New", line="new: bytes = param(b'')"),
    HEAD + CLASS.format(name="New", line="new: int = param(1)").replace('    """What it means."""\n', ""),
    HEAD.partition("\n")[2] + CLASS.format(name="New", line="new: int = param(1)"),
    "from neoxargs.registry.plugins import choices\nchoices('pos-emb', 'xpos')",
    "from neoxargs.registry.plugins import choices\nchoices('pos_emb', 'rotary')",
    "from neoxargs.registry.plugins import choices\nchoices('seed', 3)\nchoices('sed', 3)",
])  # fmt: skip
def test_what_is_wrong_with_a_plugin(text: str | None, tmp_path: Path, deepy: Deepy) -> None:
    if text is not None:
        (tmp_path / "other.py").write_text(text)
    done = deepy("check", "my.yml", *WITH, "--plugin", "other")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    pinned(done.stderr, "error: ")

"""The hardware and packages that a run needs are checked before the ranks start."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from neoxargs.base.record import replace
from neoxargs.base.request import Request
from neoxargs.checks import all as preflight
from neoxargs.checks.machine import hardware, packages
from neoxargs.cli import main
from neoxargs.hosts import compiled_ops
from neoxargs.hosts.devices import Device, gpu_models
from neoxargs.plan.command import plan_of
from neoxargs.plan.given.options import PlanOptions
from neoxargs.runs.run_spec import RunSpec, resolve_run
from tests.support.smallest import YAML
from tests.support.snapshots import pinned

OFFLOAD = """\
pipe_parallel_size: 0
zero_optimization:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: {path}
"""


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_ops, "uncompilable", lambda *_: [])


def run_of(folder: Path, more: str = "", overrides: Sequence[str] = (), **changes: object) -> RunSpec:
    """The smallest run with these settings, on resources with these changes."""
    file = folder / "run.yml"
    file.write_text(YAML + more)
    made = resolve_run(Request([str(file)], overrides, gpus=1), {"DS_ACCELERATOR": "cpu"})
    return replace(made, resources=replace(made.resources, **changes))


def spec(folder: Path, path: Path, more: str = "", overrides: Sequence[str] = (), **changes: object) -> RunSpec:
    """A run that offloads its optimizer to a folder."""
    return run_of(folder, OFFLOAD.format(path=path) + more, overrides, **changes)


def told(spec: RunSpec, word: str) -> list[str]:
    found = preflight.problems(spec, "train", ["files", "machine"])
    return [f"{problem.where}: {problem.what}" for problem in found if word in problem.what]


def warned(spec: RunSpec, id: str) -> bool:
    """Whether there is one problem of this kind, a warning."""
    found = [problem for problem in preflight.problems(spec, "train", ["machine", "values"]) if problem.id == id]
    assert [problem.severity for problem in found] == ["warning"] * len(found) and len(found) < 2
    return bool(found)


def test_a_folder_that_exists_or_can_be_created(tmp_path: Path) -> None:
    assert told(spec(tmp_path, tmp_path), "nvme_path") == []
    assert told(spec(tmp_path, tmp_path / "to be" / "made"), "nvme_path") == []


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "swap"
    pinned(told(spec(tmp_path, below), "nvme_path"))


def test_other_machines_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert len(told(spec(tmp_path, tmp_path / "file"), "nvme_path")) == 1
    assert told(spec(tmp_path, tmp_path / "file", remote=True), "nvme_path") == []


def test_gpudirect_storage_needs_gpus(tmp_path: Path) -> None:
    assert told(spec(tmp_path, tmp_path, "aio: {use_gds: true}\n"), "use_gds") == []
    (problem,) = told(spec(tmp_path, tmp_path, "aio: {use_gds: true}\n", device="cpu"), "use_gds")
    pinned(problem)


def test_mpi_where_torch_was_built_without_it(tmp_path: Path) -> None:
    distributed = pytest.importorskip("torch.distributed")
    problems = told(spec(tmp_path, tmp_path, "distributed_backend: mpi\n"), "distributed_backend")
    assert len(problems) == (0 if distributed.is_mpi_available() else 1)
    assert all(f"run.yml:{YAML.count(chr(10)) + 7}:1: distributed_backend (mpi): " in what for what in problems)
    assert told(spec(tmp_path, tmp_path, "distributed_backend: gloo\n"), "distributed_backend") == []


@pytest.mark.parametrize("text", [
    "use_wandb: true", "wandb: {enabled: true}", "use_comet: true", "tensorboard_dir: tb",
    "tokenizer_type: SPMTokenizer", "use_wandb: false\nuse_comet: null",
])  # fmt: skip
def test_packages_that_are_not_installed(tmp_path: Path, monkeypatch, text) -> None:
    for package in (*packages.PACKAGES.values(), *packages.TOKENIZERS.values()):
        monkeypatch.setitem(sys.modules, package, None)
    found = preflight.problems(spec(tmp_path, tmp_path, text), "train", ["files", "machine"])
    pinned([problem for problem in found if "Python package" in problem.what])
    assert told(spec(tmp_path, tmp_path, text, remote=True), "Python package") == []


def test_a_folder_with_the_name_of_a_package_is_not_the_package(tmp_path: Path, monkeypatch) -> None:
    """wandb keeps its runs in ./wandb."""
    (tmp_path / "comet_ml").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert packages.is_missing("comet_ml")
    (tmp_path / "comet_ml" / "__init__.py").touch()
    assert not packages.is_missing("comet_ml")


@pytest.mark.parametrize("name", hardware.GPUS_ONLY)
def test_features_that_deepspeed_implements_for_gpus_only(tmp_path: Path, name: str) -> None:
    key = name.rpartition(".")[2]
    chosen = [f"{name}=true"]
    assert told(spec(tmp_path, tmp_path, overrides=chosen), key) == []
    (problem,) = told(spec(tmp_path, tmp_path, overrides=chosen, device="cpu"), key)
    pinned(problem)
    lower = [*chosen, "zero_optimization.stage=2", "zero_optimization.offload_optimizer.device=cpu"]
    assert told(spec(tmp_path, tmp_path, overrides=lower, device="cpu"), "needs GPUs") == []  # not read below stage 3


def test_a_list_of_zero_stages_for_the_autotuner(tmp_path: Path) -> None:
    stages = ["zero_optimization.stage=[1, 3]", "autotuning.enabled=true"]
    assert told(run_of(tmp_path, overrides=stages, device="cpu"), "needs GPUs") == []


def test_a_missing_compiler_is_a_problem_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("CXX", "no-compiler")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert len(told(spec(tmp_path, tmp_path), "async_io")) == 1


@pytest.mark.parametrize(
    ("device", "variables", "missing"),
    [
        ("cpu", {}, "C++"),
        ("cpu", {"CXX": "true -O2"}, None),
        ("cuda", {"CXX": "true"}, "C"),
        ("cuda", {"CC": "true"}, None),
        ("cuda", {"CC": "no-compiler"}, "C"),
    ],
)
def test_a_missing_compiler_for_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Device, variables: dict[str, str], missing: str | None
) -> None:
    (tmp_path / "true").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = run_of(tmp_path, "compile_layers: true\n").config
    found = [problem.what for problem in hardware.layers_that_cannot_compile(config, device)]
    expected = f"compile_layers needs a {missing} compiler, which is not installed on this machine"
    assert found == ([expected] if missing else [])
    assert not list(hardware.layers_that_cannot_compile(spec(tmp_path, tmp_path).config, device))


@pytest.mark.parametrize(
    ("more", "device", "warns"),
    [
        ("", "cuda", True),
        ("precision: float32\n", "cuda", True),
        ("", "cpu", False),
        ("precision: bfloat16\n", "cuda", False),
        ("float32_matmul_precision: high\n", "cuda", False),
        ("float32_matmul_precision: highest\n", "cuda", False),
    ],
)
def test_fp32_on_gpus_without_tf32(tmp_path: Path, more: str, device: Device, warns: bool) -> None:
    assert warned(run_of(tmp_path, more, device=device), "fp32-without-tf32") == warns


@pytest.mark.parametrize(
    ("more", "models", "warns"),
    [
        ("precision: fp16\n", ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"], True),
        ("precision: fp16\n", ["NVIDIA GeForce RTX 3090"], True),
        ("precision: fp16\n", ["Tesla V100-SXM2-32GB"], False),
        ("precision: fp16\n", ["NVIDIA A100-SXM4-80GB", "Quadro RTX 6000"], False),
        ("precision: fp16\n", [], False),
        ("precision: bfloat16\n", ["NVIDIA A100-SXM4-80GB"], False),
        ("precision: fp16\nfinetune: true\nload: elsewhere\n", ["NVIDIA A100-SXM4-80GB"], False),
    ],
)
def test_fp16_on_gpus_with_bf16(tmp_path, monkeypatch, more: str, models: list[str], warns: bool) -> None:
    for number, model in enumerate(models):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 16\n")
    monkeypatch.setattr(hardware, "gpu_models", lambda: gpu_models(tmp_path))
    assert warned(run_of(tmp_path, more, device="cuda"), "fp16-beside-bf16") == warns


@pytest.mark.parametrize(
    ("hosts", "size", "warns"),
    [("a slots=4\nb slots=4\n", 8, True), ("a slots=6\nb slots=6\n", 4, True), ("a slots=4\nb slots=4\n", 4, False)],
)
def test_tensor_parallel_groups_across_hosts(tmp_path, hosts: str, size: int, warns: bool) -> None:
    (tmp_path / "hosts").write_text(hosts)
    file = tmp_path / "run.yml"
    file.write_text(f"{YAML}hostfile: {tmp_path}/hosts\nmodel_parallel_size: {size}\n".replace("heads: 4", "heads: 8"))
    found = resolve_run(Request([str(file)], [], directory=str(tmp_path)), {})
    assert warned(found, "tensor-parallel-across-hosts") == warns


def test_no_size_on_a_host_is_advised_that_the_heads_refuse(tmp_path, capsys) -> None:
    def found(size: int) -> set[str]:
        file = tmp_path / "run.yml"
        model = YAML.replace("heads: 4", "heads: 12").replace("hidden_size: 64", "hidden_size: 96")
        file.write_text(f"{model}model_parallel_size: {size}\n")
        main(["check", str(file), "--gpus", "16", "--json"])
        return {each["id"] for each in json.loads(capsys.readouterr().out)["problems"]} & {
            "tensor-parallel-divides-heads", "tensor-parallel-across-hosts",
        }  # fmt: skip

    assert found(16) == {"tensor-parallel-divides-heads"}
    assert found(12) == {"tensor-parallel-across-hosts"}
    assert found(4) == set()


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ("", ["chat-template-missing"]), ("chat_template: chatlm\n", ["chat-template-unknown"]),
        ("chat_template: chatml\n", []), ("vocab_file: tokenizer.json\n", []), ("vocab_file: other.json\n", []),
        ("tokenizer_type: ByteLevelTokenizer\n", ["chat-template-missing"]),
    ],
)  # fmt: skip
def test_a_missing_chat_template_is_found_before_the_launch(tmp_path, monkeypatch, more: str, wrong: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}" if wrong else '{"chat_template": "{{ messages }}"}')
    defaults = "tokenizer_type: HFTokenizer\n" * ("_type" not in more)
    defaults += "vocab_file: tokenizer.json\n" * ("vocab_file" not in more and "Byte" not in more)
    Path("run.yml").write_text(f"{YAML}text_gen_type: chat\n{defaults}{more}")
    found = preflight.problems(resolve_run(Request(["run.yml"], gpus=1), {}), "generate", ["files"])
    problems = [problem for problem in found if "chat_template" in problem.about]
    assert [problem.id for problem in problems] == wrong
    assert all(problem.where and problem.where.file == "run.yml" for problem in problems)


@pytest.mark.parametrize(("gpus", "size", "warns"), [(64, 16, True), (64, 8, False), (12, 4, True), (12, 3, False),
                                                     (20, 2, False), (4, 4, False)])  # fmt: skip
def test_check_and_plan_agree_on_the_hosts_of_a_number_of_gpus(tmp_path, gpus: int, size: int, warns: bool) -> None:
    file = tmp_path / "run.yml"
    heads = f"heads: {2 * size}\nmake_vocab_size_divisible_by: 1\n"
    text = YAML.replace("heads: 4\n", heads).replace("hidden_size: 64", f"hidden_size: {32 * size}")
    file.write_text(f"{text}model_parallel_size: {size}\n")
    found = resolve_run(Request([str(file)], [], gpus=gpus), {})
    assert warned(found, "tensor-parallel-across-hosts") == warns
    plan = plan_of(PlanOptions([str(file)], gpus=gpus, device="H100-80GB"))
    assert ("tensor parallelism between hosts" in plan.beyond) == warns
    assert len(plan.spec.resources.hosts) == len(found.resources.assumed)


@pytest.mark.parametrize(
    ("more", "device", "warns"),
    [
        ("distributed_backend: nccl\n", "cpu", True),
        ("distributed_backend: nccl\n", "cuda", False),
        ("distributed_backend: gloo\n", "cpu", False),
        ("", "cpu", False),
    ],
)
def test_a_backend_of_gpus_on_cpus(tmp_path: Path, more: str, device: Device, warns: bool) -> None:
    found = preflight.problems(run_of(tmp_path, more, device=device), "train", ["machine"])
    assert [each.id for each in found if "distributed_backend" in each.about] == ["no-effect"] * warns

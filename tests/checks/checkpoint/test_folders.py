"""An earlier run's checkpoints are noticed before a run starts."""

import sys
from pathlib import Path

import pytest
import torch

from neoxargs.cli import main
from neoxargs.files.checkpoints import folder as checkpoint_folder
from neoxargs.launch.start.run import Ended
from tests.support import smallest
from tests.support.snapshots import pinned

MODEL = smallest.YAML + """\
tokenizer_type: ByteLevelTokenizer
data_path: tokens
save: out
checkpoint_factor: 5
"""  # fmt: skip


@pytest.fixture(autouse=True)
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A folder with everything a run needs; what would be started is noted down."""
    monkeypatch.chdir(tmp_path)
    for name in ("tokens.bin", "tokens.idx", "other.py"):
        Path(name).touch()
    Path("a.yml").write_text(MODEL)
    seen: list[str] = []
    for name in ("tokenise", "compile_ops", "write_record"):
        monkeypatch.setattr(f"neoxargs.launch.start.prepare.{name}", lambda *_: 0)
    monkeypatch.setattr(
        "neoxargs.launch.start.restarts.start", lambda launched, *_, **__: seen.append(str(launched)) or Ended(0)
    )
    return seen


def test_an_earlier_run_is_not_overwritten(capsys, started):
    assert main(["train.py", "a.yml"]) == 0
    for iteration in (20, 100):
        Path(f"out/global_step{iteration}").mkdir(parents=True)
    assert main(["train.py", "a.yml"]) == 1
    shown = capsys.readouterr().err
    assert "a.yml:10:1: error: save (out) already holds a checkpoint from iteration 100, " in shown
    assert "  = set load: out to continue from this checkpoint, or set save to a different folder\n" in shown
    assert len(started) == 1


@pytest.mark.parametrize("script", ["train.py", "eval.py"])
def test_the_folder_of_one_checkpoint_is_named_by_its_iteration(capsys, started, script):
    Path("best/global_step40").mkdir(parents=True)
    assert main([script, "a.yml", "--set", "load=best/global_step40"]) == 1
    shown = capsys.readouterr().err
    assert "[checkpoint-missing]" in shown and "load: best" in shown and "iteration: 40" in shown
    Path("best/global_step40").rmdir()
    assert main([script, "a.yml", "--set", "load=best/global_step40"]) == 1
    assert "iteration: 40" not in capsys.readouterr().err


@pytest.mark.parametrize("words", [["check", "a.yml"], ["train.py", "a.yml"], ["generate.py", "a.yml"]])
def test_a_checkpoint_of_a_newer_format_is_reported_with_all_other_problems(capsys, started, words):
    """No older one is taken in its place."""
    for iteration, version in ((10, checkpoint_folder.FORMAT), (20, checkpoint_folder.FORMAT + 1)):
        folder = Path(f"out/global_step{iteration}")
        folder.mkdir(parents=True)
        (folder / checkpoint_folder.RUN).write_text(checkpoint_folder.Written(format=version).to_json())
    Path("tokens.idx").unlink()
    assert main([*words, "--set", "load=out"]) == 1
    shown = capsys.readouterr().err
    assert "error: out/global_step20 has checkpoint format 2, but this version of deepy reads formats up to 1" in shown
    assert words[0] == "generate.py" or "[data-file-missing]" in shown
    assert not started


@pytest.mark.parametrize("words", [["train.py", "a.yml", "--set", "load=out"], ["train.py", "a.yml", "--set", "save=b"],
                                   ["other.py", "a.yml"]])  # fmt: skip
def test_a_run_that_continues_or_saves_elsewhere_may_start(started, words):
    Path("out/global_step20").mkdir(parents=True)
    assert main(words) == 0
    assert len(started) == 1


@pytest.mark.parametrize("name", ["global_step20", "step20"])
@pytest.mark.parametrize("more", [[], ["load=out"], ["load=out", "iteration=20"], ["load=out", "finetune=true"],
                                  ["load=elsewhere"], ["load=out", "keep_last_n_checkpoints=2"]])  # fmt: skip
def test_nor_do_a_run_s_checkpoints_come_among_gpt_neox_s(capsys, started, more, name):
    folder = Path("out", name)
    folder.mkdir(parents=True)
    Path("out/latest").write_text(name)
    for file in ("mp_rank_00_", "layer_00-model_00-", "layer_02-model_00-"):
        torch.save({"iteration": 20}, folder / f"{file}model_states.pt")
    assert main(["train.py", "a.yml", *(f"--set={pair}" for pair in more)]) == 1
    pinned(capsys.readouterr().err, "[save-among-gpt-neox]")
    assert not started
    assert main(["train.py", "a.yml", "--set", "save=b"]) == 0 and len(started) == 1


@pytest.mark.parametrize("more", [["load=elsewhere"], ["load=out", "finetune=true"]])
def test_nor_by_a_run_that_continues_another_checkpoint(capsys, started, more):
    for folder in ("out", "elsewhere"):
        Path(folder, "global_step20").mkdir(parents=True)
    words = [f"--set={pair}" for pair in more]
    assert main(["train.py", "a.yml", *words]) == 1
    pinned(capsys.readouterr().err, "[checkpoint-overwritten]")
    assert main(["train.py", "a.yml", *words, "--set", "save=new"]) == 0
    assert len(started) == 1


def test_check_reports_it_and_a_dry_run_only_warns(capsys):
    Path("out/global_step20").mkdir(parents=True)
    for words, code in ((["train.py", "a.yml", "--dry-run"], 0), (["check", "a.yml"], 1)):
        assert main(words) == code
        pinned(capsys.readouterr().err, "[checkpoint-overwritten]")


def test_check_reports_folders_that_the_run_cannot_write_to(capsys):
    Path("file").touch()
    assert main(["check", "a.yml", "--set", "save=file", "--set", "run_dir=file/runs"]) == 1
    assert capsys.readouterr().err.count("is a file, not a folder [folder-not-writable]") == 2
    assert main(["check", "a.yml", "--set", "log_dir=file/logs", "--set", "tensorboard_dir=file/tb"]) == 1
    shown = capsys.readouterr().err
    assert "log_dir (file/logs): " in shown and "tensorboard_dir (file/tb): " in shown


def test_links_in_a_circle_are_no_folder(capsys, started):
    Path("a").symlink_to("b")
    Path("b").symlink_to("a")
    for words in (["--set", "save=a"], ["--set", "load=a"], ["--set", "save=a", "--set", "load=b"]):
        for command in ("check", "train.py"):
            assert main([command, "a.yml", *words]) == 1
            pinned(capsys.readouterr().err, "[folder-not-writable]" if "save=a" in words else "[checkpoint-missing]")
    assert not started


@pytest.mark.parametrize(("more", "lost"), [
    (["train_iters=25"], []), (["train_iters=50"], ["global_step40"]),
    (["train_iters=25", "keep_last_n_checkpoints=1"], ["global_step40"]),
])  # fmt: skip
def test_newer_checkpoints_that_a_run_will_not_keep_are_a_warning(capsys, more, lost):
    for iteration in (10, 20, 40):
        Path(f"out/global_step{iteration}").mkdir(parents=True)
    words = [f"--set={value}" for value in ("load=out", "iteration=20", *more)]
    assert main(["check", "a.yml", *words]) == 0
    shown = capsys.readouterr().err
    assert [name for name in ("global_step10", "global_step40") if name in shown] == lost
    assert ("[newer-checkpoints-lost]" in shown) == bool(lost)


@pytest.mark.parametrize("save", ["out", "elsewhere"])
def test_an_iteration_without_a_checkpoint_is_an_error(capsys, started, save):
    Path("out/global_step20").mkdir(parents=True)
    words = ["a.yml", "--set", "load=out", "--set", f"save={save}", "--set", "iteration=999"]
    assert (main(["check", *words]), main(["train.py", *words])) == (1, 1)
    assert "error: iteration (999): there is no checkpoint out/global_step999 [" in capsys.readouterr().err
    assert not started


@pytest.mark.parametrize("words", [["check", "a.yml"], ["train.py", "a.yml"]])
def test_nothing_to_continue_from_is_told_before_the_start(capsys, started, words):
    assert main([*words, "--set", "load=nowhere"]) == 1
    pinned(capsys.readouterr().err, "[checkpoint-missing]")
    assert not started
    assert main([*words, "--set", "load=out"]) == 0


@pytest.mark.parametrize("script", ["generate.py", "eval.py"])
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("load=nowhere", "--set: error: load (nowhere): there is no checkpoint in this folder"),
        ("load=null", "a.yml:10:1: error: save (out): there is no checkpoint in this folder"),
        (
            "save=null",
            ": neither load nor save is set [checkpoint-missing]\n  = set load to a folder with a checkpoint",
        ),
    ],
)
def test_a_script_that_only_reads_needs_a_checkpoint(capsys, started, script, more, told):
    Path("nowhere").mkdir()
    assert main([script, "a.yml", "--set", more]) == 1
    assert told in capsys.readouterr().err
    assert not started
    assert main([script, "a.yml", "--set", more, "--dry-run"]) == 0
    assert told.replace("error:", "warning:") in capsys.readouterr().err
    Path("there/global_step20").mkdir(parents=True)
    assert main([script, "a.yml", "--set", "load=there"]) == 0
    assert len(started) == 1


def test_two_runs_that_start_together_share_neither_a_port_nor_a_folder_of_logs(started, monkeypatch):
    names, ports = iter(["1", "1", "2"]), iter([20_001, 20_002])  # the system may choose one twice
    monkeypatch.setattr("neoxargs.hosts.rendezvous.unused_port", lambda: next(ports))
    monkeypatch.setattr("neoxargs.processes.failures.time.strftime", lambda _: next(names))
    for _ in range(2):
        assert main(["train.py", "a.yml", "--set", "save=null"]) == 0
    assert sorted(path.name for path in Path().glob("*/logs/*")) == ["1", "2"]
    assert len({line.partition("--master_port=")[2].split()[0] for line in started}) == 2


@pytest.mark.parametrize(("rank", "local_rank", "tells"), [(0, 0, True), (8, 0, True), (9, 1, False)])
def test_of_ranks_that_are_started_already_one_on_each_machine_tells(capsys, monkeypatch, rank, local_rank, tells):
    """The others' first only if the launcher has not ended it by then."""
    monkeypatch.setattr("neoxargs.launch.become_rank.LAUNCHER_STOP_SECONDS", 0.0)
    for name, value in {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": 16}.items():
        monkeypatch.setenv(name, str(value))
    Path("tokens.idx").unlink()
    with pytest.raises(SystemExit, match="1"):
        sys.exit(main(["train.py", "a.yml"]))
    assert ("data_path: there is no tokens.idx" in capsys.readouterr().err) == tells


def test_a_script_that_only_reads_needs_the_checkpoint_of_its_iteration(capsys, started):
    Path("out/global_step20").mkdir(parents=True)
    assert main(["generate.py", "a.yml", "--iteration", "10"]) == 1
    pinned(capsys.readouterr().err, "[checkpoint-missing]")
    assert not started
    assert main(["generate.py", "a.yml", "--iteration", "20"]) == 0


def test_tasks_need_the_harness(capsys, started, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    Path("out/global_step20").mkdir(parents=True)
    assert main(["eval.py", "a.yml"]) == 0
    assert main(["eval.py", "a.yml", "--eval_tasks", "piqa"]) == 1
    pinned(capsys.readouterr().err, "[package-missing]")
    assert len(started) == 1


def test_so_do_tasks_during_training(capsys, started, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    Path("a.yml").write_text(Path("a.yml").read_text() + "eval_tasks: [piqa]\n")
    assert main(["check", "a.yml"]) == 0
    assert main(["check", "a.yml", "--set", "eval_tasks_interval=10"]) == 1
    assert "error: eval_tasks needs the Python package lm_eval" in capsys.readouterr().err


def test_fp16_on_a_cpu_that_lacks_it(capsys, started, tmp_path, monkeypatch):
    cpu = tmp_path / "cpuinfo"
    monkeypatch.setattr("neoxargs.checks.machine.hardware.CPU", cpu)
    wanted = ["a.yml", "--set", "precision=fp16"]
    cpu.write_text("flags : avx2 avx512f")
    for words in (["check", *wanted], ["train.py", *wanted]):
        assert main(words) == 1
        pinned(capsys.readouterr().err, "[cpu-without-fp16]")
    assert not started
    assert main(["check", "a.yml", "--set", "precision=bfloat16"]) == 0
    assert main(["check", *wanted, "--gpus", "1"]) == 0
    assert "fp16" not in capsys.readouterr().err
    cpu.write_text("flags : avx2 avx512f avx512_fp16")
    assert main(["check", *wanted]) == 0


def test_generate_warns_if_it_reads_the_model_that_a_run_started_from(capsys, started):
    """Not if the command names the folder."""
    Path("a.yml").write_text(MODEL + "load: start\nfinetune: true\n")
    for folder in ("start", "out"):
        Path(folder, "global_step20").mkdir(parents=True)
        Path(folder, "global_step20", "weights").touch()
    assert main(["generate.py", "a.yml"]) == 0
    pinned(capsys.readouterr().err, "[checkpoint-unread]")
    for folder in ("start", "out"):
        assert main(["generate.py", "a.yml", "--set", f"load={folder}"]) == 0
        assert "checkpoint-unread" not in capsys.readouterr().err
    assert len(started) == 3


def test_generate_reports_a_missing_prompt_file_before_the_start(capsys, started):
    Path("out/global_step20").mkdir(parents=True)
    assert main(["generate.py", "a.yml", "-i", "absent.txt"]) == 1
    pinned(capsys.readouterr().err, "[prompt-file-unreadable]")
    assert not started
    Path("prompts.txt").write_text("once upon a time\n")
    assert main(["generate.py", "a.yml", "-i", "prompts.txt"]) == 0


def test_generate_warns_of_empty_lines_between_prompts(capsys, started):
    Path("out/global_step20").mkdir(parents=True)
    Path("prompts.txt").write_text("once\n\nupon\n \na time\n\n")
    assert main(["generate.py", "a.yml", "-i", "prompts.txt"]) == 0
    told = "sample_input_file (prompts.txt): empty lines (2 and 4) are skipped, without a sample [prompt-lines-empty]"
    assert told in capsys.readouterr().err
    Path("prompts.txt").write_text("once\nupon\n\n")
    assert main(["generate.py", "a.yml", "-i", "prompts.txt"]) == 0
    assert "prompt-lines-empty" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "why"),
    [("file/a.txt", "file is a file, not a folder"), ("folder", "this is a folder"), ("/proc/x", "files cannot be")],
)
def test_generate_reports_an_output_that_cannot_be_written_before_the_start(capsys, started, output, why):
    Path("out/global_step20").mkdir(parents=True)
    Path("file").touch()
    Path("folder").mkdir()
    assert main(["generate.py", "a.yml", "-o", output]) == 1
    shown = capsys.readouterr().err
    assert f"sample_output_file ({output}): " in shown and why in shown and "[output-file-unwritable]" in shown
    assert not started
    assert main(["generate.py", "a.yml", "-o", "new/a.txt"]) == 0

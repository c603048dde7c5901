"""No secret reaches a command line, neither from the configuration nor from the environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neoxargs.checks.machine import secrets
from neoxargs.cli import main
from neoxargs.hosts.environment import passed_on
from neoxargs.hosts.hosts import Resources
from tests.support import smallest
from tests.support.configure import config_of as config
from tests.support.snapshots import pinned

LOCAL = Resources({"localhost": [0]}, "cuda")
REMOTE = Resources({"w0": [0], "w1": [0]}, "cuda", remote=True)
SHELL = {"WANDB_API_KEY": "hunter2"}
SHELL_WITHOUT_KEY = {"NCCL_DEBUG": "INFO"}


pytestmark = pytest.mark.usefixtures("env_file")


def test_a_secret_that_a_launcher_would_put_on_a_command_line_is_refused(env_file):
    [problem] = secrets.on_command_lines(config(), REMOTE, SHELL)
    assert (problem.where.file, problem.where.line) == (str(env_file), 3)
    assert "hunter" not in f"{problem}"
    for resources, launcher in ((LOCAL, "pdsh"), (REMOTE, "ssh"), (REMOTE, "srun")):
        assert not list(secrets.on_command_lines(config(launcher=launcher), resources, SHELL))


@pytest.mark.parametrize("launcher", ["pdsh", "openmpi", "slurm"])
def test_a_secret_variable_that_deepspeed_exports_is_refused(launcher):
    secret = SHELL | {"MLFLOW_TRACKING_PASSWORD": "hunter5"}
    told = list(secrets.on_command_lines(config(launcher=launcher), REMOTE, secret))
    assert "MLFLOW_TRACKING_PASSWORD" in [problem.what.split()[4] for problem in told]
    assert "hunter" not in "".join(map(str, told))
    assert not list(secrets.on_command_lines(config(launcher="ssh"), REMOTE, secret))
    assert passed_on(secret, "/")["MLFLOW_TRACKING_PASSWORD"] == "hunter5"


def test_a_secret_in_the_configuration_is_refused_on_one_machine_too():
    [problem] = secrets.in_configuration(config(**{"comet.api_key": "hunter4"}))
    pinned(problem)
    assert "hunter" not in f"{problem}"


@pytest.mark.parametrize(
    "words",
    [
        ["check"], ["explain", "--all"], ["explain", "comet.api_key"], ["explain", "comet"], ["plan"],
        ["train.py", "--dry-run"], ["train.py", "--emit", "command"], ["train.py", "--emit", "sbatch"],
        ["train.py", "--emit", "megatron"], ["train.py", "--emit", "deepspeed"], ["train.py"],
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("json", [(), ("--json",)], ids=["text", "json"])
def test_no_command_prints_a_secret_of_a_file(words, json, tmp_path, capsys):
    """A file with another mistake in the line, a valid one, and a value of --set."""
    in_section = "comet: {enabled: true, api_key: hunter4, nonsense: 1}\n", "comet: {api_key: hunter4}\n"
    if json and words == ["train.py"]:
        pytest.skip("a launch has no JSON")
    unknown = "hf_token: hunter4\nwandb_notes: --wandb-api-key hunter4\n"
    cases = *((text, []) for text in (*in_section, unknown)), ("", ["--set", "comet.api_key=hunter4"])
    for text, overrides in cases:
        Path("my.yml").write_text(smallest.YAML + text)
        main([*words, *json, "my.yml", *overrides])
        printed = capsys.readouterr()
        assert printed.out + printed.err
        assert "hunter" not in printed.out + printed.err
    if words[0] == "train.py" and len(words) > 1:
        assert "comet.api_key would appear on every rank's command line" in printed.out + printed.err


NESTED = "deepspeed_extra_args: {tracker: [{API_KEY: hunter4}]}\n"


@pytest.mark.parametrize("text", ["comet: {enabled: true, api_key: hunter4}\n", NESTED], ids=["parameter", "nested"])
@pytest.mark.parametrize("form", [[], ["--json"], ["--html", "page.html"]], ids=" ".join)
def test_diff_shows_no_secret(text, form, capsys):
    """The difference is shown, but neither value."""
    Path("a.yml").write_text(smallest.YAML + text)
    Path("b.yml").write_text(smallest.YAML + text.replace("hunter4", "hunter5"))
    main(["diff", *form, "a.yml", "b.yml"])
    printed = capsys.readouterr().out + (Path("page.html").read_text() if "--html" in form else "")
    assert ("***" in printed or "comet.api_key" in printed) and "hunter" not in printed


@pytest.mark.parametrize(
    "words", [["explain", "--all"], ["explain", "deepspeed_extra_args"], ["train.py", "--dry-run"]]
)
def test_a_secret_in_a_section_without_declared_keys_is_not_printed(words, capsys):
    Path("my.yml").write_text(smallest.YAML + NESTED)
    main([*words, "my.yml"])
    printed = "".join(capsys.readouterr())
    assert "hunter" not in printed
    assert ("remove the secret from deepspeed_extra_args" in printed) == (words[0] == "train.py")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("launcher_args", "--export=ALL,WANDB_API_KEY=hunter4"),
        ("launcher_args", "-x NCCL_DEBUG=INFO --wandb-api-key hunter4"),
        ("wandb_host", "https://user:hunter4@wandb.example"),
        ("s3_path", "s3://user:hunter4@bucket"),
    ],
)
@pytest.mark.parametrize("words", [["check"], ["train.py", "--dry-run"]], ids=" ".join)
def test_a_secret_within_a_text_is_refused_at_its_key_alone(name, value, words, capsys):
    """The texts of the files, which a checkpoint records, have no problem of their own."""
    Path("my.yml").write_text(f"{smallest.YAML}{name}: '{value}'\n")
    assert main([*words, "--json", "my.yml"]) == 1
    printed = capsys.readouterr().out
    found = [each for each in json.loads(printed)["problems"] if each["id"] == "secret-in-configuration"]
    assert [(each["about"], each["line"]) for each in found] == [([name], 8)]
    assert "hunter" not in printed


def test_a_secret_in_a_comment_of_the_file_does_not_reach_the_ranks(capsys):
    Path("my.yml").write_text(f"# WANDB_API_KEY=hunter4\n{smallest.YAML}")
    main(["train.py", "my.yml", "--dry-run", "--json"])
    printed = capsys.readouterr().out
    assert "# WANDB_API_KEY=*******" in printed and "hunter" not in printed


def test_a_missing_key_of_wandb_is_reported_where_wandb_would_look_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    wandb = config(use_wandb=True, wandb_host="https://wandb.example")

    def missing(environ=SHELL_WITHOUT_KEY, asked=wandb):
        return [problem.what for problem in secrets.missing_wandb_key(asked, environ)]

    pinned(missing())
    for environ in ({"WANDB_API_KEY": "hunter1"}, {"WANDB_MODE": "offline"}, {"WANDB_IDENTITY_TOKEN_FILE": "token"}):
        assert not missing(environ)
    assert missing({"WANDB_MODE": "online"}) and not missing(asked=config())
    (tmp_path / "_netrc").write_text("machine api.wandb.ai login user password hunter1\n")
    assert missing()
    (tmp_path / "other").write_text("machine wandb.example login user password hunter1\n")
    assert not missing({"NETRC": "~/other"})
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    assert not missing()

"""How problems are rendered."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from neoxargs.base.problems import (
    MAX_DRAWN,
    SET,
    Place,
    Problem,
    Problems,
    close_matches,
    did_you_mean,
    listed,
    printable,
    render,
    report,
    sentence,
    shortened,
    similar_folders,
    without_secrets,
)
from neoxargs.base.record import replace


def test_a_problem_points_below_its_line() -> None:
    place = Place("my.yml", 12, 1, "hiden_size: 768", 10)
    assert render([Problem("hiden_size is not a parameter", place, "did you mean hidden_size?", id="some-id")]) == (
        "my.yml:12:1: error: hiden_size is not a parameter [some-id]\n"
        "  12 | hiden_size: 768\n"
        "     | ^^^^^^^^^^\n"
        "  = did you mean hidden_size?"
    )


def test_a_set_shows_the_argument() -> None:
    place = Place(SET, 1, 6, "seed=x", 1)
    assert render([Problem("seed must be a number", place, id="some-id")]) == (
        "--set: error: seed must be a number [some-id]\n  --set seed=x\n             ^"
    )


def test_both_places_of_a_conflict_are_rendered() -> None:
    first, second = Place("a.yml", 1, 1, "seed: 1", 7), Place("b.yml", 2, 3, "  seed: 2", 7)
    text = render([Problem("seed is set twice", second, also=(first,), id="some-id")])
    assert "  also at a.yml:1:1\n  1 | seed: 1\n    | ^^^^^^^" in text


def test_a_place_is_rendered_once() -> None:
    place = Place("a.yml", 1, 1, "seed: 1", 7)
    assert "also" not in render([Problem("no", place, also=(place,), id="some-id")])


def test_a_whole_file_has_no_line() -> None:
    assert (
        render([Problem("there is no such file", Place("no.yml", 0, 0), id="some-id")])
        == "no.yml: error: there is no such file [some-id]"
    )


def test_the_number_of_rendered_problems_is_limited() -> None:
    warnings = [Problem("careful", Place("f", line, 1), severity="warning", id="some-id") for line in range(1, 4)]
    errors = [Problem("no", Place("f", line, 1), id="some-id") for line in range(4, 4 + MAX_DRAWN)]
    drawn = render([*warnings, *errors]).split("\n\n")
    last = "... and 3 more; --json prints all of them"
    assert drawn == [*(f"f:{line}:1: error: no [some-id]" for line in range(4, 4 + MAX_DRAWN)), last]
    assert "more" not in render(errors)


def test_a_problem_without_a_place_comes_last() -> None:
    problems = [
        Problem("c", id="some-id"),
        Problem("b", Place("f", 9, 1), id="some-id"),
        Problem("a", Place("f", 2, 1), severity="warning", id="some-id"),
    ]
    assert render(problems) == "f:2:1: warning: a [some-id]\n\nf:9:1: error: b [some-id]\n\nerror: c [some-id]"


def test_long_lines_are_cut_around_the_caret() -> None:
    line = "a" * 300 + "X" + "b" * 300
    _, excerpt, carets = render([Problem("x", Place("f", 1, 301, line), id="some-id")]).split("\n")
    assert len(excerpt) < 130
    assert excerpt[carets.index("^")] == "X"


def test_the_caret_is_below_characters_of_two_cells() -> None:
    place = Place("my.yml", 1, 14, 'a: "数据", é: 数据 # x', 2)
    _, line, caret = render([Problem("no", place, id="some-id")]).splitlines()
    assert (line[:4], caret) == ("  1 ", "    | " + " " * 14 + "^^^^")


def test_control_characters_are_replaced() -> None:
    excerpt = render([Problem("x", Place("f", 1, 3, "a\tX\x1b[31m"), id="some-id")])
    assert "a X\N{REPLACEMENT CHARACTER}[31m" in excerpt
    assert printable("tab\there") == "tab here"


def test_the_exception_text_is_the_rendered_problems() -> None:
    assert (
        str(Problems([Problem("a", id="some-id"), Problem("b", id="some-id")]))
        == "error: a [some-id]\n\nerror: b [some-id]"
    )


def test_the_id_follows_the_first_line() -> None:
    problem = Problem("there are two; choose one\n  1: a\n  2: b", hint="add --choose N", id="several-things")
    assert render([problem]) == (
        "error: there are two; choose one [several-things]\n  1: a\n  2: b\n  = add --choose N"
    )


def test_similar_names() -> None:
    assert close_matches("hiden_size", ["seed", "hidden_size"]) == ["hidden_size"]
    assert did_you_mean("hiden_size", ["seed", "hidden_size"]) == "did you mean hidden_size?"
    assert did_you_mean("xyz", ["seed"]) == ""


def test_similar_folders_are_named_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "configs" / "models").mkdir(parents=True)
    assert similar_folders(f"{tmp_path}/configs/modells") == f"did you mean {tmp_path}/configs/models?"
    assert similar_folders(str(tmp_path / "other" / "models")) == similar_folders(f"{tmp_path}/configs/x") == ""


def test_joined_words() -> None:
    assert [listed([]), listed(["a"]), listed(["a", "b", "c"])] == ["", "a", "a, b or c"]
    assert listed(["a", "b"], "and") == "a and b"
    assert listed(map(str, range(20)), most=2) == "0, 1 and 18 more"


def test_problems_that_differ_only_in_line_and_numbers_are_counted() -> None:
    alike = [Problem(f"message {n} has no role", where=Place("c.jsonl", n, 1), id="a") for n in range(1, 6)]
    other = Problem("invalid JSON", where=Place("c.jsonl", 9, 1), id="b")
    shown = shortened([*alike, other], complete=True)
    assert [shown[0], shown[1], shown[3]] == [alike[0], alike[1], other] and len(shown) == 4
    assert sentence(shown[2]) == "message 3 has no role (and 2 more lines)"
    assert sentence(shortened(alike[:4], complete=False)[2]) == "message 3 has no role (and at least 1 more line)"
    files = [Problem(f"{n}.txt is not UTF-8", id="c") for n in range(5)]
    assert shortened([*alike[:3], *files], complete=True) == [*alike[:3], *files]


def test_choices_that_are_as_many_edits_away_are_both_suggested() -> None:
    assert close_matches("adamm", ["adam", "radam"]) == ["adam"]  # radam is two edits away
    assert close_matches("betax", ["beta", "betas"]) == ["beta", "betas"]
    assert close_matches("betsa", ["beta", "betas"]) == ["beta", "betas"]  # swapped letters are one edit


def test_a_terminal_gets_the_same_text_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    where = Place("my.yml", 3, 5, "lr: 1O", 2)
    problems = [
        Problem("lr (1O) must be a number", where, "did you mean 10?", id="x", also=(Place("b.yml", 1, 1, "a"),))
    ]
    plain, coloured = render(problems), render(problems, colour=True)
    assert re.sub(r"\033\[[\d;]*m", "", coloured) == plain
    assert "\033[1;31merror:\033[0m" in coloured and "\033" not in plain


@pytest.mark.parametrize(
    ("terminal", "variables", "colour"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_only_a_terminal_gets_colour(monkeypatch, terminal, variables, colour):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr("sys.stderr", stream)
    report([Problem("no", id="x")])
    assert ("\033" in stream.getvalue()) == colour


def test_problems_are_rendered_when_they_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    from neoxargs.base import problems

    rendered = []
    monkeypatch.setattr(problems, "render", lambda found: rendered.append(1) or "text")
    stop = Problems(Problem("wrong", id="some-id"))
    assert not rendered
    assert str(stop) == "text"


def test_the_middle_of_a_sentence_with_a_very_long_value_is_cut() -> None:
    value = "/data/" + "x" * 900_000
    problem = Problem(f"vocab_file ({value}) does not exist", Place("my.yml", 1, 1, f"vocab_file: {value}"), id="id")
    head, *others = render([replace(problem, hint=f"remove {value}, or create it")]).split("\n")
    assert head.startswith("my.yml:1:1: error: vocab_file (/data/xxx") and head.endswith("xxx) does not exist [id]")
    assert max(map(len, (head, *others))) < 2_100
    assert others[-1].endswith("xx, or create it")
    assert problem.to_json()["what"] == problem.what


@pytest.mark.parametrize("value", ["hunter2", "[first, hunter2]", '"two hunter2"', "'two hunter2'"])
def test_a_secret_is_hidden_in_the_line_the_sentence_and_the_hint(value: str) -> None:
    text = f"comet: {{api_key: {value}, other: 1}}"
    problem = Problem(text, Place("my.yml", 1, 1, text), f"set api_key: {value}", id="some-id")
    for shown in (render([problem]), str(problem.to_json())):
        assert "hunter2" not in shown and "api_key: *" in shown
    assert "other: 1" in render([problem])


@pytest.mark.parametrize(
    "text",
    [
        "hf_token: hunter2", "export HF_TOKEN='hunter2'", "aws_secret_access_key: hunter2", '"access_key": "hunter2"',
        "api-key: hunter2", "launcher_args: --export=ALL,WANDB_API_KEY=hunter2", "MY_KEY=hunter2",
        "run --wandb-api-key hunter2 --lr 1", "huggingface_hub_token (hunter2)", "hf_token: 12-hunter2",
        f"hf_hunter{'aB' * 14}", f"see ghp_hunter{'a1' * 15}", f"github_pat_hunter_{'a1' * 20}",
        f"'glpat-hunter-{'a1' * 8}'", f"key: sk-proj-hunter-{'A1' * 12}", "xoxb-1234-hunter",
        "comet_others: [--api-key, hunter2]", "['--hf-token', 'hunter2']", "wandb_team: {token: hunter2}",
        "num_layers: 3  # token=hunter2",
    ],
)  # fmt: skip
def test_a_secret_is_recognised_by_its_name_or_by_its_form(text: str) -> None:
    assert "hunter" in text
    assert "hunter" not in without_secrets(text) and len(without_secrets(text)) == len(text)
    assert "AKIA" not in without_secrets("id: AKIAIOSFODNN7EXAMPLE")


@pytest.mark.parametrize(
    "text",
    [
        "eod_token: 0", "pad_token: pad", 'image_token: "<image>"', "image_token: 32000", "flops_per_token: 1e9",
        "tokenizer_type: HFTokenizer", "max_tokens: 4096", "--mask-before-token (A:)",
        "end_of_turn_token: stop", "num_tokens (10)", "prompt_end: '<|assistant|>'",
        "query_key_value: 3", "sort_key=loss", "data_path: /data/hf_checkpoints_of_the_last_experiment",
        "run_dir: runs/sk-learn-pipeline-experiment-2024", "name: task-A1B2C3D4E5F6A1B2C3D4E5F6",
        "--tokenizer-type GPT2BPETokenizer --api-key --lr 1",
    ],
)  # fmt: skip
def test_tokens_of_a_text_and_names_of_files_are_no_secrets(text: str) -> None:
    assert without_secrets(text) == text

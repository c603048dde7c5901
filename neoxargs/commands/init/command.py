"""`deepy init`: ask for what a run depends on, search its layout, and write one commented file that checks and fits."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import Any

from neoxargs.base.files import Text
from neoxargs.base.options import gpu_count
from neoxargs.base.problems import Place, Problem, Problems, report
from neoxargs.base.text import format_bytes, format_duration
from neoxargs.base.write_files import require_writable, write_all
from neoxargs.commands.init import answers as read
from neoxargs.commands.init.answers import QUESTIONS, Answers, Question
from neoxargs.commands.init.compose import compose, layout
from neoxargs.commands.init.goals import GOALS
from neoxargs.hosts.assumed import GPUS_PER_HOST
from neoxargs.plan.given.options import PlanOptions
from neoxargs.plan.search.command import find_layouts
from neoxargs.plan.search.search import Result
from neoxargs.resolve import File, draft
from neoxargs.runs.run_spec import complete_run

DESCRIPTION = (
    "Write a commented configuration for a new run: a shipped model, with the layout that fits on the GPUs and has the "
    "shortest estimated step. "
    "At a terminal, asks for what the options leave open."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    # No %(default)s: argparse takes the defaults of positionals away where options stand between them.
    add("file", metavar="FILE", nargs="?", default="run.yml", help="write to FILE (default: run.yml)")
    add("--model", metavar="NAME", type=read.model, help="a model of configs/models, or a size such as 1.3B")
    add("--device", metavar="NAME", type=read.device, help="the type of the GPUs, such as H100-80GB")
    add("--gpus", metavar="N", type=gpu_count, help="the number of GPUs")
    add("--per-host", metavar="N", type=gpu_count, default=GPUS_PER_HOST, help="GPUs per host (default: %(default)s)")
    add("--hostfile", metavar="FILE", type=read.hostfile, help="the machines, in place of --gpus and --per-host")
    what = "token files without .bin and .idx, or text (default: the source code of Python's standard library)"
    add("--data", metavar="PREFIX", nargs="*", help=what)
    add("--tokenizer", metavar="FILE", type=read.tokenizer, help="a tokenizer.json, a .model file, or their folder")
    add("--goal", metavar="GOAL", choices=GOALS, help=f"one of {', '.join(GOALS)} (default: pretrain)")
    add("--checkpoint", metavar="FOLDER", help="the checkpoint to start from; not for pretrain")
    add("--force", action="store_true", help="overwrite FILE")


def run(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    """Run the command and return its exit code. Raises Problems."""
    _require_writable(given)
    answers, text, result = _asked(parser, given)
    _require_writable(given)  # the questions may have taken a while
    write_all([Text(given.file, text)])
    best = result.front[0]
    print(f"{given.file}: {answers.model} on {answers.gpus} x {answers.device}, {best.layout}")
    print(f"about {format_duration(best.seconds)} per step, and {format_bytes(best.memory)} per GPU")
    gpus = "" if answers.hostfile else f" --gpus {answers.gpus}"
    name = shlex.quote(given.file)
    print(f"next: read it, then deepy check {name}{gpus}, and on the GPUs deepy train.py {name}")
    return 0


def written(name: str, answers: Answers) -> tuple[str, Result]:
    """Return the text of the file and the search for its layout. Raises Problems."""
    begun = compose(answers)
    options = PlanOptions([name], gpus=answers.gpus, per_host=answers.per_host, device=answers.device)
    result, _ = find_layouts(draft([File(name, begun)], []), options, "deepy init")
    if not result.fitting:
        what = f"{answers.model} does not fit on {answers.gpus} x {answers.device} in any layout"
        hint = f"to find a number that suffices: deepy plan {answers.model} --fewest --device {answers.device}"
        raise Problems(Problem(what, hint=hint, id="init-does-not-fit"))
    begin = f"# Written by deepy init; every key: deepy explain KEY {name}, or docs/parameters.md.\n"
    per_host = f" --per-host {answers.per_host}" if answers.per_host != GPUS_PER_HOST else ""
    again = f"deepy plan {shlex.quote(name)} --gpus {answers.gpus}{per_host} --device {answers.device}"
    text = f"{begin}{begun}\n{layout(result, again)}"
    complete_run(draft([File(name, text)], []), os.environ, answers.gpus)
    return text, result


def _require_writable(given: argparse.Namespace) -> None:
    require_writable(given.file)
    if os.path.isfile(given.file) and not given.force:
        what, hint = "this file already exists", "use a different name, or add --force"
        raise Problems(Problem(what, Place(given.file, 0, 0), hint, id="output-file-exists"))


def _asked(parser: argparse.ArgumentParser, given: argparse.Namespace) -> tuple[Answers, str, Result]:
    """Return the answers and what is written for them; at a terminal, wrong answers are asked for again."""
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    for question in QUESTIONS:
        if question.applies(given):
            _complete(question, parser, given, asks)
    while True:
        answers = Answers.of(given)
        try:
            return answers, *written(given.file, answers)
        except Problems as stop:
            if not asks or given.hostfile or stop.problems[0].id != "init-does-not-fit":
                raise
            report(stop.problems)
            given.gpus = _ask(next(question for question in QUESTIONS if question.name == "gpus"))


def _complete(question: Question, parser: argparse.ArgumentParser, given: argparse.Namespace, asks: bool) -> None:
    """Ask at a terminal for what the options leave open; elsewhere take the default, or end with an error."""
    while getattr(given, question.name) is None or question.wrong(given):
        wrong = "" if getattr(given, question.name) is None else question.wrong(given)
        if not asks and (wrong or question.default is None):
            parser.error(wrong or f"--{question.name} is required where nothing can be asked")
        if wrong:
            print(wrong)
        answer = _ask(question) if asks else question.read(question.default or "")
        setattr(given, question.name, answer)
    if says := question.says(getattr(given, question.name)):
        print(says)


def _ask(question: Question) -> Any:
    while True:
        shown = f" [{question.default}]" if question.default else ""
        try:
            answer = input(f"{question.text}{shown}: ").strip() or question.default
            if answer is not None:
                return question.read(answer)
        except argparse.ArgumentTypeError as error:
            print(error)
        except EOFError:
            raise KeyboardInterrupt from None

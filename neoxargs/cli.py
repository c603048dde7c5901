"""`deepy`: a first argument that ends in .py is a script to launch, anything else is a command.

Commands import what they need when they run, so that `check` answers in a tenth of a second.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import NoReturn

from neoxargs.base import programs
from neoxargs.base.files import never_writable_for_all
from neoxargs.base.options import add_files, add_json
from neoxargs.base.problems import Place, Problem, Problems, did_you_mean, report
from neoxargs.base.record import replace
from neoxargs.base.request import Request
from neoxargs.commands.command_line import make_parser, parse, parser_of, strip_key_dashes
from neoxargs.processes import interrupts, streams

USAGE = """\
python deepy.py train.py FILE ... [-d DIR] [--set KEY=VALUE] [--dry-run]  train a model
python deepy.py generate.py FILE ... [--prompt TEXT]                      sample from a checkpoint
python deepy.py eval.py FILE ... [--eval_tasks TASK ...]                  evaluate a checkpoint
python deepy.py init [FILE]                                               write a configuration
python deepy.py check FILE ...                                            report every problem
python deepy.py check [DIR]                                               check a repository's runs
python deepy.py plan FILE ...                                             estimate memory and speed
python deepy.py preview FILE ...                                          show what a run will do
python deepy.py verify FILE ...                                           try every setting on CPUs
python deepy.py lsp                                                       serve an editor
python deepy.py explain KEY [FILE ...]                                    describe a parameter
python deepy.py explain --all FILE ...                                    list values with sources
python deepy.py explain PROBLEM_ID                                        describe a problem
python deepy.py diff A B                                                  compare two runs
python deepy.py migrate SOURCE ...                                        convert to current YAML
python deepy.py data TEXT ... --output-prefix PREFIX                      tokenise text
python deepy.py data --chat FILE ... --output-prefix PREFIX               tokenise conversations
python deepy.py data --verify|--count|--merge PREFIX ...                  work on token files
python deepy.py data --sample N FILE ...                                  documents of a sample
python deepy.py data --ledger RUN                                         what a run has read
python deepy.py export FILE ... --to FOLDER                               convert to other formats
python deepy.py import FOLDER --to FOLDER                                 convert from other formats
python deepy.py checkpoints FOLDER [--verify] [--prune KEEP]              list checkpoints
python deepy.py docs [--check]                                            regenerate docs/
python deepy.py --completion bash|zsh|fish                                complete in a shell

examples:
  python deepy.py train.py configs/quickstart.yml
  python deepy.py check -d configs models/gpt-2-small layouts/tp2-pp2 --gpus 4 (.yml may be omitted)
  python deepy.py check my.yml --gpus 64                    (assume 64 GPUs)
  python deepy.py explain zero_optimization.stage my.yml

`python deepy.py COMMAND --help` lists the options of a command.

exit codes:
  0 success, 1 problems, 2 invalid command line, 130 interrupted by Ctrl-C, 143 terminated by
  SIGTERM (a run saves a checkpoint before it exits with 130 or 143); if a rank fails, the exit
  code of that rank
"""


def program() -> NoReturn:
    """Run the command of `sys.argv`, and end the process."""
    gc.set_threshold(100_000)  # at Python's 700, collections during imports take a tenth of the time of `check`
    code = main()
    from neoxargs.processes.exit_at_once import exit_at_once

    exit_at_once(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    streams.open_closed()
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # what its encoding lacks is escaped, as on stderr
    never_writable_for_all()
    try:
        code = _answer(words)
        sys.stdout.flush()  # an error is reported here, because `program` ignores it
        return code
    except BrokenPipeError:
        return interrupts.reader_gone()
    except OSError as error:
        if streams.is_unwritable(error):
            return streams.unwritable(error)
        raise


def _answer(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(f"usage:\n{USAGE.replace('python deepy.py', called_as())}", end="")
        return 0 if words else 2
    if words[0] == "--version":
        return version()
    if words[0] == "--completion":
        return completion(words)
    return _run_command(words)


def called_as() -> str:
    """Return how this program was called: the installed command `deepy`, or deepy.py in a checkout."""
    return "deepy" if os.path.basename(sys.argv[0]) == "deepy" else "python deepy.py"


def _run_command(words: list[str]) -> int:
    """Run a command or a launch, print its problems and return the exit code."""
    try:
        return _find_command(words[0])(words)
    except Problems as problems:
        return _print_problems(problems, words)
    except KeyboardInterrupt as stop:
        return interrupts.report("no rank was running" if words[0].endswith(".py") else "", stop)
    except OSError as error:  # for example a file name that is too long, or an I/O error
        if not isinstance(error.filename, str):
            raise
        reason = (error.strerror or str(error)).lower()
        return _print_problems(Problems([Problem(reason, Place(error.filename, 0, 0), id="file-error")]), words)


def _print_problems(problems: Problems, words: list[str]) -> int:
    if "--json" in words or "--output-format json" in " ".join(words).replace("=", " "):
        print(json.dumps({"ok": False, "problems": [problem.to_json() for problem in problems.problems]}, indent=2))
    else:
        report(problems.problems)
    return 1


def _find_command(word: str) -> Callable[[list[str]], int]:
    if word.endswith(".py"):
        return launch
    if word not in COMMANDS:
        choices = f"commands: {', '.join(COMMANDS)}; scripts: {', '.join(programs.PROGRAMS)}"
        instead = did_you_mean(word, [*COMMANDS, *programs.PROGRAMS]) or choices
        if word.endswith((".yml", ".yaml", ".json")):
            instead = f"a file follows a script or a command: deepy.py train.py {word}, or deepy.py check {word}"
        _usage_error(f"there is no command {word}; {instead}")
    return COMMANDS[word]


def version() -> int:
    """`deepy --version`: print the installed version (a checkout in PYTHONPATH has none)."""
    from importlib import metadata

    try:
        print(f"neoxargs {metadata.version('neoxargs')}")
    except metadata.PackageNotFoundError:
        print("neoxargs (not installed as a package)")
    return 0


def completion(words: list[str]) -> int:
    """`deepy --completion SHELL`: print a script that completes command lines in a shell."""
    from neoxargs.commands.completion import SHELLS, programs_with_parsers, script

    if len(words) != 2 or words[1] not in SHELLS:
        _usage_error(f"--completion takes the name of a shell: {', '.join(SHELLS)}")
    own = programs_with_parsers()
    names = [name for name in (*COMMANDS, *programs.PROGRAMS) if name not in ("data", "export", "import")]
    made = {name: [parser_of(_find_command(name), name)] for name in names}
    print(script(words[1], {**made, **own}), end="")
    return 0


def launch(words: list[str]) -> int:
    """`deepy train.py FILE ...`: start a run, or print what would be started."""
    from neoxargs.launch.options import add_arguments, neox_overrides

    parser = make_parser(words[0], f"Launch {words[0]} on every rank, configured by one or more YAML files.")
    add_arguments(parser, words[0])
    options = parse(parser, words)
    from neoxargs.launch import main as launch_main

    request = Request.of(options, neox_overrides(options), words[0])
    if options.device:
        from neoxargs.hosts.device_table import find_device

        find_device(options.device)  # a dry run does not plan, but its command is copied
    if options.dry_run or options.emit:
        return launch_main.show(request, options.emit)
    if options.check_hosts:
        return launch_main.check_hosts(request)
    for flag in ("gpus", "json", "deepspeed", "torch"):
        if getattr(options, flag):
            parser.error(f"--{flag} requires --dry-run or --emit")
    from neoxargs.hosts.rank_env import names
    from neoxargs.launch.stages import State
    from neoxargs.plan import gate

    # torchrun, srun or mpirun has started this process as one of several ranks.
    is_rank = names(os.environ)

    def memory(state: State) -> State:
        if is_rank:
            planned = gate.planned_on_rank(state.script, state.spec, request, options.device)
        else:
            planned = gate.check_memory(state.script, state.spec, request, options.device, options.force)
        return replace(state, resolved=replace(state.spec, planned=planned))

    if is_rank:
        from neoxargs.launch.become_rank import become_rank

        become_rank(request, {"memory": memory})
    return launch_main.run(request, {"memory": memory})


def check(words: list[str]) -> int:
    """`deepy check [FILE ... | DIR]`: report every problem of a run, or of the runs of a repository, or ok."""
    from neoxargs.commands.check.modes import add_arguments, answer
    from neoxargs.launch.options import add_neox_options, neox_overrides

    parser = make_parser("check", "Report every problem in a configuration, or print ok. Starts nothing.")
    add_arguments(parser)
    add_neox_options(parser, "train.py", with_help=not {"-h", "--help"}.isdisjoint(words))
    options = parse(parser, words)
    return answer(options, Request.of(options, neox_overrides(options)), parser.error)


def plan(words: list[str]) -> int:
    """`deepy plan FILE ...`: estimate placement, memory and speed."""
    from neoxargs.plan.command import run
    from neoxargs.plan.given.options import DESCRIPTION, add_arguments, answer_assumptions

    parser = make_parser("plan", DESCRIPTION)
    add_files(parser, "*")
    add_json(parser)
    add_arguments(parser)
    arguments = parse(parser, words)
    answer_assumptions(parser, arguments)
    file, *others = arguments.files
    if others or not file.endswith(programs.SHELL_SCRIPTS):
        return run(arguments)
    from neoxargs.migrate.sources import run_of_script

    text, left_out = run_of_script(file)
    return run(arguments, [text], left_out)


def preview(words: list[str]) -> int:
    """`deepy preview FILE ...`: what a run will do over its iterations."""
    from neoxargs.commands.preview.command import DESCRIPTION, add_arguments, run
    from neoxargs.plan.given.options import answer_assumptions

    parser = make_parser("preview", DESCRIPTION)
    add_files(parser, "*")
    add_arguments(parser)
    arguments = parse(parser, words)
    answer_assumptions(parser, arguments)
    return run(arguments)


def verify(words: list[str]) -> int:
    """`deepy verify FILE ...`: show on CPUs that every setting does what it says."""
    from neoxargs.commands.verify.command import DESCRIPTION, add_arguments, run

    parser = make_parser("verify", DESCRIPTION)
    add_files(parser)
    add_arguments(parser)
    return run(parse(parser, words))


def init(words: list[str]) -> int:
    """`deepy init [FILE]`: write a configuration from a few answers."""
    from neoxargs.commands.init.command import DESCRIPTION, add_arguments, run

    parser = make_parser("init", DESCRIPTION)
    add_arguments(parser)
    return run(parser, parse(parser, words))


def lsp(words: list[str]) -> int:
    """`deepy lsp`: serve an editor with the Language Server Protocol over standard input and output."""
    parser = make_parser("lsp", "Serve an editor: problems as you type, corrections, descriptions and completions.")
    parse(parser, words)
    try:
        from neoxargs.commands.lsp.server import serve
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        hint = "install it with `pip install -c constraints.txt -e '.[lsp]'`"
        problem = Problem(f"deepy lsp needs the package {package}", hint=hint, id="lsp-needs-a-package")
        raise Problems(problem) from None
    return serve()


def explain(words: list[str]) -> int:
    """`deepy explain KEY [FILE ...]`: describe a parameter, who receives it, and its value in the files."""
    what = "Describe a parameter or a problem. If files are given, also show the parameter's value and its source."
    parser = make_parser("explain", what)
    add = parser.add_argument
    key = "a parameter, such as zero_optimization.stage, or the id of a problem, such as rotary-dims-even"
    add("key", metavar="KEY", help=key)
    add("--all", action="store_true", help="print every value of the configuration and its source, as YAML")
    add_files(parser, "*")
    add_json(parser)
    options = parse(parser, strip_key_dashes(parser, words))
    from neoxargs.commands.explain import command

    request = Request.of(options)
    if options.all:
        print(command.explain_everything(replace(request, files=[options.key, *options.files])))
    else:
        print(command.explain(options.key, request))
    return 0


def diff(words: list[str]) -> int:
    """`deepy diff A B`: compare two configurations, run folders or checkpoints."""
    from neoxargs.commands.diff.command import DESCRIPTION, add_arguments, run

    parser = make_parser("diff", DESCRIPTION)
    add_arguments(parser)
    add_json(parser)
    options = parse(parser, words)
    try:
        return run(options)
    except Problems as problems:
        _print_problems(problems, words)
        return 2  # 1 means that the runs differ


def migrate(words: list[str]) -> int:
    """`deepy migrate SOURCE ...`: convert a configuration of an older version or another program."""
    from neoxargs.migrate.command import DESCRIPTION, add_arguments, run

    parser = make_parser("migrate", DESCRIPTION)
    add_arguments(parser)
    add_json(parser)
    return run(parse(parser, words))


def data(words: list[str]) -> int:
    """`deepy data ...`: tokenise text or conversations, or work on token files; the programs parse their arguments."""
    if not {"--verify", "--count", "--merge"}.isdisjoint(words):
        _become_module(programs.TOKEN_FILES, words, needs=("numpy",))
    if not {"--sample", "--ledger"}.isdisjoint(word.partition("=")[0] for word in words):
        return samples(words)
    if "--chat" in words:
        _become_module(programs.CHAT_DATA, words, needs=("numpy", "tokenizers", "jinja2"))
    _become_module(programs.DATA, words, needs=("numpy", "tokenizers"))


def samples(words: list[str]) -> int:
    """`deepy data --sample N FILE ...`: what samples are made of; `deepy data --ledger RUN`: what a run has read."""
    from neoxargs.checks.machine.packages import missing_for

    if absent := list(missing_for("deepy data --sample", ("numpy", "torch", "megatron"))):
        raise Problems(absent)
    from neoxargs.commands.samples import DESCRIPTION, add_arguments, run

    parser = make_parser("data", DESCRIPTION)
    add_arguments(parser)
    return run(parse(parser, words))


def export(words: list[str]) -> int:
    """`deepy export FILE ... --to FOLDER`: write a checkpoint in Hugging Face's or GPT-NeoX's format."""
    _become_module(programs.EXPORT, words, needs=("numpy", "torch"))


def import_(words: list[str]) -> int:
    """`deepy import FOLDER --to FOLDER`: convert a Hugging Face folder or a GPT-NeoX checkpoint."""
    _become_module(programs.IMPORT, words, needs=("numpy", "torch"))


def checkpoints(words: list[str]) -> int:
    """`deepy checkpoints FOLDER`: list, verify and remove checkpoints."""
    from neoxargs.commands.checkpoints import DESCRIPTION, add_arguments, run

    parser = make_parser("checkpoints", DESCRIPTION)
    add_arguments(parser)
    add_json(parser)
    return run(parse(parser, words))


def docs(words: list[str]) -> int:
    """`deepy docs [--check]`: regenerate the documentation."""
    what = "Regenerate the documentation: parameter tables, JSON Schema, and command outputs quoted in the guides."
    parser = make_parser("docs", what)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    add_json(parser)
    where = "write to DIR instead of docs/, and include the parameters of plugins"
    parser.add_argument("-o", "--output", metavar="DIR", help=where)
    options = parse(parser, words, installed=False)
    if options.plugin and not options.output:
        parser.error("--plugin requires -o: docs/ documents only the package itself")
    from neoxargs.commands.docs.command import write_docs

    stale = write_docs(options.check, options.output)
    failed = bool(options.check and stale)
    if options.json:
        print(json.dumps({"ok": not failed, "stale": stale, "problems": []}, indent=2))
        return int(failed)
    for path in stale:
        print(f"{path} is out of date; run deepy docs" if options.check else f"{path} written")
    return int(failed)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "check": check,
    "init": init,
    "plan": plan,
    "preview": preview,
    "verify": verify,
    "lsp": lsp,
    "explain": explain,
    "diff": diff,
    "migrate": migrate,
    "data": data,
    "export": export,
    "import": import_,
    "checkpoints": checkpoints,
    "docs": docs,
}


def _become_module(module: str, words: list[str], needs: Sequence[str]) -> NoReturn:
    """Replace this process by `python -m module`; raises Problems if a package that it needs is not installed."""
    from neoxargs.checks.machine.packages import missing_for
    from neoxargs.hosts.environment import with_package

    if absent := list(missing_for(f"deepy {words[0]}", needs)):
        raise Problems(absent)
    interrupts.hold()  # the program accepts Ctrl-C once it can report it, after its imports
    os.execve(sys.executable, [sys.executable, "-m", module, *words[1:]], with_package(os.environ))


def _usage_error(what: str) -> NoReturn:
    print(f"deepy: {what}\nto list the commands: {called_as()} --help", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    program()

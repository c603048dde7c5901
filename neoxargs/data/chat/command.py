"""`deepy data --chat FILE ...`: conversations to token files and label files for instruction tuning."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from neoxargs.base.problems import Problem, Problems
from neoxargs.data.chat import report
from neoxargs.data.chat.build import build, up_to_date
from neoxargs.data.chat.recipe import ChatRecipe
from neoxargs.data.command import as_flags, warn_of_left_out
from neoxargs.data.encode import Recipe
from neoxargs.data.exit_code import exit_code_of
from neoxargs.data.in_use import locked
from neoxargs.data.neox_flags import add_neox_flags, inputs, refused
from neoxargs.data.python_functions import SOURCES
from neoxargs.data.text_files import JSON_LINES
from neoxargs.data.tokenizer import BUILDERS
from neoxargs.files.builtin_chat_templates import BUILT_IN
from neoxargs.files.token_files.made_from import wrong_prefix
from neoxargs.processes import interrupts


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deepy data --chat",
        description="Tokenise conversations with a chat template. Write the tokens, and labels that select which "
        "of them to train on: by default, those of the assistant's turns.",
        epilog="The flags of GPT-NeoX's preprocess_data_with_chat_template.py are accepted as well; "
        "see docs/from-gpt-neox.md.",
    )
    parser.add_argument("--chat", action="store_true", help=argparse.SUPPRESS)
    add = parser.add_argument
    add("texts", nargs="*", metavar="FILE", help="read conversations from a .jsonl, .jsonl.gz or .jsonl.zst file "
        "with one JSON object per line, from a folder of such files, or from the files that match a pattern. A .py "
        "file, or Python's standard library, instead gives a question and an answer for each documented function; for "
        f"the library, write {', '.join(SOURCES)}")  # fmt: skip
    add("--output-prefix", required=True, metavar="PREFIX",
        help="write PREFIX.bin, PREFIX.idx, PREFIX_label.bin, PREFIX_label.idx and PREFIX.json")  # fmt: skip
    add("--json-key", metavar="KEY", help="read the list of messages from KEY, or questions and answers from two keys, "
        "KEY,KEY (default: detected from the first lines)")  # fmt: skip
    add("--workers", type=int, metavar="N",
        help="use N processes (default: one per core, or fewer if there is little text)")  # fmt: skip
    add("--if-missing", action="store_true", help="do nothing if the files were written from the same conversations "
        "with the same options")  # fmt: skip
    add("--json", action="store_true", help="print the statistics, or the problems, as JSON")
    add = parser.add_argument_group("tokenizer and chat template").add_argument
    add("--tokenizer-path", metavar="FOLDER",
        help="use the tokenizer in a Hugging Face folder, with its chat template")  # fmt: skip
    add("--tokenizer-type", choices=list(BUILDERS), metavar="NAME",
        help=f"instead of --tokenizer-path, use one of {', '.join(BUILDERS)}")  # fmt: skip
    add("--vocab-file", metavar="FILE", help="read the tokenizer's vocabulary from FILE: vocab.json or tokenizer.json")
    add("--merge-file", metavar="FILE", help="read GPT2BPETokenizer's merges from FILE (merges.txt)")
    add("--chat-template", metavar="TEMPLATE", help="use a Jinja file, one of the tokenizer's templates by name, or "
        f"one of deepy's: {', '.join(BUILT_IN)} (default: the tokenizer's default template)")  # fmt: skip
    add("--append-eod", action=argparse.BooleanOptionalAction, default=True,
        help="append the end token to each conversation, and train on it if the last turn is trained "
        "(default: on)")  # fmt: skip
    add = parser.add_argument_group("which tokens to train on").add_argument
    add("--train-on", nargs="+", metavar="ROLE", help="train on the turns of these roles (default: assistant)")
    add("--only-last", action="store_true", help="train only on the last turn, if its role is one of --train-on")
    add("--tool-calls", action=argparse.BooleanOptionalAction, default=True,
        help="train on the turns that call tools (default: on)")  # fmt: skip
    add("--no-mask", action="store_true", help="train on all tokens")
    add("--for-rm", action="store_true", help="for a reward model: append two end tokens, and train on the second only")
    add("--mask-by", choices=("turns", "marks"), default="turns",
        help="train on whole turns, as GPT-NeoX does, or on the text inside the template's {%% generation %%} blocks, "
        "as transformers does (default: %(default)s)")  # fmt: skip
    add = parser.add_argument_group("long conversations").add_argument
    add("--max-length", type=int, metavar="N", help="report how many conversations have more than N tokens")
    add("--overlong", choices=("keep", "drop", "cut"), default="keep",
        help="what to do with conversations of more than --max-length tokens (default: %(default)s)")  # fmt: skip
    add = parser.add_argument_group("rewards, for KTO").add_argument
    add("--reward-key", metavar="KEY", help="also write PREFIX_reward.bin and .idx with one reward per conversation: "
        "the number under KEY in its line, which rates the last answer")  # fmt: skip
    add("--binary-reward", action="store_true", help="read true and false under --reward-key, and write 1 and -1")
    add_neox_flags(parser)
    # Of the tool for conversations only.
    parser.add_argument("--generation-role", help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `deepy data --chat`; return 0, 1 after printing problems, 130 after Ctrl-C, or 143 after SIGTERM."""
    args = parser().parse_args(argv)

    def tell(problems: Problems) -> None:
        if args.json:
            print(json.dumps({"problems": [problem.to_json() for problem in problems.problems]}, indent=1))
        else:
            print(as_flags(str(problems)), file=sys.stderr)

    unwritten = f"{args.output_prefix} has not been written"
    return exit_code_of(lambda: _run(args), tell, lambda stop: interrupts.report(unwritten, stop))


def _run(args: argparse.Namespace) -> None:
    recipe = _recipe(args)
    texts, prefix = [*args.texts, *inputs(args)], Path(args.output_prefix)
    started = time.perf_counter()
    summary, sample = up_to_date(texts, recipe, prefix) if args.if_missing else None, None
    if not summary:
        with locked(prefix, wait=args.if_missing):
            # Again: another command may have written the files meanwhile.
            summary = up_to_date(texts, recipe, prefix) if args.if_missing else None
            if not summary:
                warn_of_left_out([name for name in texts if name not in SOURCES], JSON_LINES)
                summary, sample = build(texts, recipe, prefix, args.workers)
    if sample is None:
        done = f"{prefix} is up to date: {summary.conversations:,} conversations, written with the same options"
    else:
        style = report.TERMINAL if sys.stdout.isatty() else report.PLAIN
        statistics = report.summary_text(summary, args.output_prefix, time.perf_counter() - started)
        done = f"{report.sample_text(sample, style)}\n{statistics}"
    print(json.dumps(asdict(summary), indent=1) if args.json else done, flush=True)


def _recipe(args: argparse.Namespace) -> ChatRecipe:
    """Return the recipe of the options; raise Problems if they contradict each other."""
    problems = [*refused(args), *_contradictions(args), *wrong_prefix(args.output_prefix)]
    if problems:
        raise Problems(problems)
    roles = args.train_on or ([args.generation_role] if args.generation_role else ["assistant"])
    keys = args.json_key.split(",") if args.json_key else (args.jsonl_keys or [])
    return ChatRecipe(
        tokenizer=_tokenizer(args),
        chat_template=args.chat_template,
        json_keys=tuple(keys),
        masking="reward" if args.for_rm else "none" if args.no_mask else args.mask_by,
        train_on=tuple(roles),
        only_last=args.only_last,
        tool_calls=args.tool_calls,
        max_length=args.max_length,
        overlong=args.overlong,
        reward_key=args.reward_key,
        binary_reward=args.binary_reward,
    )


def _contradictions(args: argparse.Namespace) -> list[Problem]:
    partly = args.only_last or args.train_on or not args.tool_calls or args.mask_by == "marks"
    checks = {
        "--no-mask trains on all tokens, so it cannot be combined with options that select what to train on": (
            args.no_mask and partly
        ),
        "--mask-by marks trains on what the template marks, so --train-on and --no-tool-calls have no effect": (
            args.mask_by == "marks" and (args.train_on or not args.tool_calls)
        ),
        "--for-rm trains on an end token only, so it cannot be combined with --no-mask, --mask-by marks, "
        "--no-append-eod, --overlong cut or --reward-key": (
            args.for_rm
            and (
                args.no_mask
                or args.mask_by == "marks"
                or not args.append_eod
                or args.overlong == "cut"
                or args.reward_key
            )
        ),
        "--binary-reward needs --reward-key": args.binary_reward and not args.reward_key,
        "--overlong needs --max-length": args.overlong != "keep" and args.max_length is None,
        f"--max-length ({args.max_length}) must be at least 1": args.max_length is not None and args.max_length < 1,
        f"--workers ({args.workers}) must be at least 1": args.workers is not None and args.workers < 1,
        "--tokenizer-path already selects the tokenizer, so --tokenizer-type, --vocab-file and --merge-file have "
        "no effect": args.tokenizer_path and (args.tokenizer_type or args.vocab_file or args.merge_file),
        f"--json-key ({args.json_key}) must be one key, or two keys separated by a comma": (
            args.json_key is not None and len(list(filter(None, args.json_key.split(",")))) not in (1, 2)
        ),
    }
    return [Problem(what, id="chat-options-contradict") for what, wrong in checks.items() if wrong]


def _tokenizer(args: argparse.Namespace) -> Recipe:
    if not args.tokenizer_path:
        kind = args.tokenizer_type or "GPT2BPETokenizer"
        return Recipe(kind, args.vocab_file, args.merge_file, args.append_eod)
    folder = Path(args.tokenizer_path)
    file = folder if folder.is_file() else folder / "tokenizer.json"
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if file.is_file():
        return Recipe("HFTokenizer", str(file), None, args.append_eod)
    if vocabulary.is_file() and merges.is_file():
        return Recipe("GPT2BPETokenizer", str(vocabulary), str(merges), args.append_eod)
    what = f"--tokenizer-path ({folder}) must be a folder with a tokenizer.json"
    hint = "download one with: hf download NAME --local-dir FOLDER" if not folder.exists() else ""
    raise Problems(Problem(what, hint=hint, id="tokenizer-folder-missing"))


if __name__ == "__main__":
    sys.exit(main())

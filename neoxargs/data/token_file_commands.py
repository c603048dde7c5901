"""`deepy data --verify`, `--count` and `--merge`: commands for token files that exist.

The last two do the work of GPT-NeoX's dataset_token_count.py and merge_datasets.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from neoxargs.base.problems import Problem, Problems
from neoxargs.base.text import format_bytes
from neoxargs.data.exit_code import exit_code_of
from neoxargs.data.in_use import locked
from neoxargs.data.meter import Meter
from neoxargs.files.token_files import checksums, index, labels, rewards
from neoxargs.files.token_files import writer as indexed
from neoxargs.files.token_files.made_from import (
    label_prefix,
    refuse_other_files,
    reward_prefix,
    sidecar,
    write_json,
    wrong_prefix,
)
from neoxargs.processes import interrupts

HERE = "--output-prefix"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deepy data",
        description="Compare token files with their checksums, count their tokens, or merge them.",
    )
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--verify", action="store_true", help="read the files completely and compare them with the "
        "checksums that were recorded when they were written, or when a run first read them")  # fmt: skip
    how.add_argument("--count", action="store_true", help="print the numbers of documents and tokens")
    how.add_argument("--merge", action="store_true", help="join token files, with their labels and rewards, to one")
    parser.add_argument("prefixes", nargs="*", metavar="PREFIX",
        help="token files: prefixes, or folders, which stand for all token files in them")  # fmt: skip
    parser.add_argument("--input", action="append", default=[], help=argparse.SUPPRESS)  # GPT-NeoX's name
    parser.add_argument("--output-prefix", metavar="PREFIX", help="with --merge: write PREFIX.bin and PREFIX.idx")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, 1 after printing problems, 130 after Ctrl-C, or 143 after SIGTERM."""
    options = parser().parse_args(argv)

    def tell(problems: Problems) -> None:
        if options.json:
            found = [problem.to_json() for problem in problems.problems]
            print(json.dumps({"ok": False, "problems": found}, indent=1))
        else:
            print(problems, file=sys.stderr)

    unwritten = f"{options.output_prefix} has not been written" if options.merge else ""
    return exit_code_of(lambda: _run(options), tell, lambda stop: interrupts.report(unwritten, stop))


def _run(options: argparse.Namespace) -> None:
    named = [*options.prefixes, *options.input]
    if bool(options.output_prefix) != options.merge or not named:
        what = "name at least one token file" if not named else f"--merge and {HERE} belong together"
        raise Problems(Problem(what, hint="see deepy data --count --help", id="data-option-invalid"))
    files = token_files(named)
    if options.merge:
        merge(files, Path(options.output_prefix))
        files = [options.output_prefix]
    result: dict[str, Any]
    if options.verify:
        result, text = verified(files)
    else:
        counted = {prefix: count(prefix) for prefix in files}
        if len(files) > 1:
            counted["total"] = {name: sum(each[name] for each in counted.values()) for name in ("documents", "tokens")}
        lines = (
            f"{name}: {each['tokens']:,} tokens in {each['documents']:,} documents" for name, each in counted.items()
        )
        result, text = counted, "\n".join(lines)
    print(json.dumps({"ok": True, "files": result}, indent=1) if options.json else text, flush=True)


def token_files(named: Sequence[str]) -> list[str]:
    """Return the prefixes of token files that are named by prefix, file or folder. Raises Problems."""
    found, problems = [], []
    for name in named:
        if Path(name).is_dir():
            inside = sorted(str(path)[: -len(".idx")] for path in Path(name).glob("*.idx"))
            beside = {str(make(Path(prefix))) for prefix in inside for make in (label_prefix, reward_prefix)}
            chosen = [prefix for prefix in inside if prefix not in beside]
            found += chosen
            if not chosen:
                what = f"{name}: there is no token file in this folder"
                problems.append(Problem(what, id="data-file-missing"))
        else:
            found.append(name.removesuffix(".bin").removesuffix(".idx"))
    for prefix in found:
        absent = [prefix + suffix for suffix in (".bin", ".idx") if not Path(prefix + suffix).is_file()]
        if absent:
            problems.append(Problem(f"there is no {' and no '.join(absent)}", id="data-file-missing"))
    if problems:
        raise Problems(problems)
    return list(dict.fromkeys(found))


def _with_labels(prefix: str) -> list[str]:
    """Return the prefix of a token file, and those of its labels and rewards if they exist."""
    beside = [make(Path(prefix)) for make in (label_prefix, reward_prefix)]
    return [prefix, *(str(path) for path in beside if indexed.exists(path))]


def verified(prefixes: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Compare token files, their labels and rewards with their checksums. Raises Problems with all that differ.

    A file that has none must have the size that its index tells: otherwise the checksum of a truncated one is recorded.
    """
    named = [name for prefix in prefixes for name in _with_labels(prefix)]
    damaged = {name: problem for name in named if not checksums.recorded(name) and (problem := _damage(name))}
    files = [name for name in named if name not in damaged]
    size = sum(Path(name + suffix).stat().st_size for name in files for suffix in checksums.SUFFIXES)
    with Meter(size, f"reading {format_bytes(size)}") as meter:
        outcomes = list(checksums.examine(files, everything=True, read=meter.advance))
    if problems := [*damaged.values(), *(outcome.problem for outcome in outcomes if outcome.problem)]:
        raise Problems(problems)
    states = {outcome.file: "recorded" if outcome.is_new else "verified" for outcome in outcomes}
    words = {
        "verified": "equals its checksum",
        "recorded": "had no checksum to be compared with; it is recorded now",
    }
    return states, "\n".join(f"{file}: {words[state]}" for file, state in states.items())


def count(prefix: str) -> dict[str, int]:
    """Return the numbers of documents, which are sequences to GPT-NeoX, and of tokens. Raises Problems."""
    found = _opened(prefix)
    return {"documents": len(found.lengths), "tokens": int(found.begins[-1])}


def _opened(prefix: str) -> index.TokenFile:
    if problem := _damage(prefix):
        raise Problems(problem)
    found = index.read(prefix, index.TYPES | rewards.FLOATS)
    assert found
    return found


def _damage(prefix: str) -> Problem | None:
    """Return what is wrong with the structure of a token file, of labels or of rewards."""
    if index.read(prefix, index.TYPES | rewards.FLOATS) and not index.damage(prefix):
        return None
    what = f"{prefix}: {indexed.damage(Path(prefix)) or index.damage(prefix)}"
    return Problem(what, hint="copy both files again", id="data-file-damaged")


def merge(prefixes: Sequence[str], output: Path) -> None:
    """Join token files in the given order, and their labels and rewards, if all have them. Raises Problems."""
    inputs = [_with_labels(prefix) for prefix in prefixes]
    problems = [*wrong_prefix(str(output)), *_do_not_fit(inputs, output)]
    problems += [
        outcome.problem
        for outcome in checksums.examine([name for names in inputs for name in names])
        if outcome.problem
    ]
    if problems:
        raise Problems(problems)
    with locked(output):
        refuse_other_files(output)
        total = sum(Path(name + ".bin").stat().st_size for names in inputs for name in names)
        with Meter(total, f"merging {format_bytes(total)}") as meter, ExitStack() as stack:
            for same_kind in zip(*inputs, strict=True):
                ending = same_kind[0][len(prefixes[0]) :]
                opened = [_opened(name) for name in same_kind]
                new = indexed.new_file(output.with_name(output.name + ending), _stored(opened))
                writer = stack.enter_context(new)
                for name, file in zip(same_kind, opened, strict=True):
                    ends = _ends(name, len(file.lengths))
                    for part in labels.chunks(file.begins[:-1], file.begins[1:]):
                        ids = file.ids[file.begins[part.start] : file.begins[part.stop]].astype(writer.stored)
                        writer.add(ids, file.lengths[part].tolist(), ends[part])
                        meter.advance(ids.nbytes)
            sidecar(output).unlink(missing_ok=True)
        write_json(sidecar(output), _record(prefixes))


def _do_not_fit(inputs: Sequence[Sequence[str]], output: Path) -> Iterator[Problem]:
    """Yield why files cannot be merged."""
    first = inputs[0]
    for names in inputs:
        if len(names) != len(first):
            what = f"{first[0]} has {len(first) - 1} files of labels and rewards, but {names[0]} has {len(names) - 1}"
            yield Problem(what, hint="merge files that all have labels, or that all have none", id="merge-not-possible")
        if str(output.absolute()) in {str(Path(name).absolute()) for name in names}:
            what = f"{HERE} ({output}) is one of the files to be merged"
            yield Problem(what, hint=f"choose a different {HERE}", id="merge-not-possible")
    made_by = {name: made for names in inputs if (made := index.tokenised_by(name := names[0]))}
    if len(set(made_by.values())) > 1:
        what = f"{', '.join(made_by)} were tokenised with different tokenizers or vocabularies"
        yield Problem(what, hint="tokenise the texts with the same tokenizer", id="merge-not-possible")


def _stored(files: Sequence[index.TokenFile]) -> type[np.generic]:
    """Return the type of the merged ids: uint16 if all files have ids of this size, otherwise int32."""
    kinds = {file.ids.dtype for file in files}
    if any(kind.kind == "f" for kind in kinds):
        return indexed.REWARD
    for file in files:
        if file.ids.dtype.itemsize > 4 and len(file.ids) and int(file.ids.max()) >= 1 << 31:
            what = f"{file.prefix} contains token id {int(file.ids.max())}, which does not fit into 32 bits"
            raise Problems(Problem(what, id="merge-not-possible"))
    return np.uint16 if kinds <= {np.dtype("u1"), np.dtype("u2")} else np.int32


def _ends(name: str, sequences: int) -> list[bool]:
    """Return of each sequence whether it ends a document; every one does if the index does not say."""
    documents = index.ends(name)
    last = np.full(sequences, len(documents) <= 1)
    last[documents[documents > 0] - 1] = True
    found: list[bool] = last.tolist()
    return found


def _record(prefixes: Sequence[str]) -> dict[str, Any]:
    """Return what is recorded beside merged files: what they were made from, and, if all inputs say it, with what."""
    made_from = [(Path(prefix).name, checksums.recorded(prefix)) for prefix in prefixes]
    digests = [[name, *(list(record.digest) for record in records.values())] for name, records in made_from]
    fingerprint = hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:16]
    values: dict[str, Any] = {"merged_from": list(prefixes), "fingerprint": fingerprint}
    made = [index.tokenised_by(prefix) for prefix in prefixes]
    return values | (made[0]._asdict() if made[0] and all(made) else {})


if __name__ == "__main__":
    sys.exit(main())

"""Run a user's script as a rank of a foreign launcher: `python script_rank.py SCRIPT ...`, with the rank's arguments.

Launchers start processes whose numbers only they know, and change their exit codes. This process says in the folder of
the attempt that it is the rank, passes signals on to the script, and records how it ended. A copy of train.py, which
runs under a supervisor, then does so itself.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from neoxargs.hosts import rank_env
from neoxargs.processes import failures
from neoxargs.processes.exit_at_once import end_by_signal
from neoxargs.processes.exit_codes import Evidence, count_memory_kills
from neoxargs.processes.interrupts import delayed, heeded
from neoxargs.processes.process_tree import send_signal, signal_when_parent_ends
from neoxargs.processes.supervisor import FORWARDED
from neoxargs.targets.wire_format import parse_rank_arguments


def main(argv: Sequence[str]) -> int:
    """Run the script to its end and return its exit code; if a signal ended it, end by the same signal."""
    arguments, kills, asked = parse_rank_arguments(argv), count_memory_kills(), list[int]()
    # Launchers put arguments of their own before the script.
    script = arguments.rest[0]
    words = [sys.executable, "-u", script, *(word for word in argv if word != script)]
    names = rank_env.names(os.environ)
    rank = rank_env.numbers(names, os.environ)[0] if names else 0
    logs = failures.logs_folder(arguments.config, arguments.attempt)
    logs.mkdir(parents=True, exist_ok=True)
    failures.reserve_files(logs, rank)
    with delayed(FORWARDED) as mask:  # until they are passed on
        if not (pid := os.fork()):
            signal_when_parent_ends(signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execv(sys.executable, words)

        def forward(number: int, frame: FrameType | None) -> None:
            asked.append(number)
            send_signal(pid, number)

        for number in heeded(FORWARDED):
            signal.signal(number, forward)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code and not failures.record_file(logs, rank).exists():
        evidence = Evidence(usage.ru_maxrss * 1024, count_memory_kills() - kills, bool(asked))
        failures.record_failure(logs, rank, code, evidence)
    failures.release_files(logs, rank)
    if code < 0:
        end_by_signal(-code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

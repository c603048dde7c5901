"""Run a command on several hosts over ssh, like `pdsh`, and end it on all of them when one fails.

    python -m neoxargs.launch.command.over_ssh --host worker-0=0,1 --host worker-1=0,1 -- COMMAND --node-rank=%n

At the end of an argument of COMMAND, `=%n` stands for the index of the host, `=%c` for its number of devices, and `=%d`
for their numbers. The environment is sent through ssh's standard input instead of a command line, where every user of a
host could read secrets.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import IO

from neoxargs.base.programs import OVER_SSH
from neoxargs.hosts.environment import passed_on

#: Seconds that the other hosts have to end by themselves after one has failed.
GRACE = 20.0


def main(argv: Sequence[str]) -> int:
    """Run the command on all hosts, copy their output, and return the exit code of the first host that fails."""
    parser = argparse.ArgumentParser(prog=f"python -m {OVER_SSH}")
    parser.add_argument("--host", action="append", required=True, metavar="NAME=DEVICE,DEVICE...")
    parser.add_argument("--port", type=int)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    port = ["-p", str(options.port)] if options.port else []
    requests: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        requests.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, note)
    hosts = [_Host(number, text, port, options.command) for number, text in enumerate(options.host)]
    return _wait(hosts, requests)


def remote_script(words: Sequence[str], directory: str, environ: Mapping[str, str]) -> str:
    """Return a shell script that runs a command until it ends, `stop` is received, or the connection breaks."""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environ.items())
    return (
        # Descriptor 3 is ssh's input, of which a line, or its end when the connection breaks, stops the command. `wait`
        # returns early if the shell gets a signal, hence the loop; `$!` is the reader of descriptor 3.
        f"cd {shlex.quote(directory)} || exit 1\n{exports}"
        f"{shlex.join(words)} < /dev/null & command=$!\n"
        "(read -r _; kill -TERM $command 2> /dev/null) < /dev/fd/3 &\n"
        "wait $command; code=$?\n"
        "while kill -0 $command 2> /dev/null; do wait $command; code=$?; done\n"
        "kill $! 2> /dev/null; exit $code\n"
    )


class _Host:
    """The ssh process of one host."""

    def __init__(self, number: int, text: str, port: list[str], command: Sequence[str]) -> None:
        self.name, _, devices = text.partition("=")
        marks = {"%n": str(number), "%c": str(len(devices.split(","))), "%d": devices}
        words = [_replaced(word, marks) for word in command]
        script = remote_script(words, os.getcwd(), passed_on(os.environ, os.getcwd()))
        size = len(script.encode())
        # bash reads exactly the script, so that later input reaches the `read` in the script, which waits for `stop`
        there = f"exec bash -c 'exec 3<&0; eval \"$(head -c {size})\"'"
        self.process = subprocess.Popen(
            ["ssh", "-o", "BatchMode=yes", *port, "--", self.name, there],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert self.process.stdout
        self._send(script)
        self.copier = threading.Thread(target=_copy, args=(self.name, self.process.stdout), daemon=True)
        self.copier.start()

    def stop(self) -> None:
        self._send("stop\n")

    def _send(self, text: str) -> None:
        assert self.process.stdin
        with contextlib.suppress(OSError):  # ssh has ended; `_wait` reads its exit code
            self.process.stdin.write(text.encode())
            self.process.stdin.flush()


def _replaced(word: str, marks: Mapping[str, str]) -> str:
    option, equals, mark = word.rpartition("=")
    return option + equals + marks.get(mark, mark) if equals else word


def _copy(name: str, output: IO[bytes]) -> None:
    for line in output:
        sys.stdout.buffer.write(f"{name}: ".encode() + line)
        sys.stdout.buffer.flush()


def _wait(hosts: Sequence[_Host], requests: list[int]) -> int:
    """Wait for all hosts. requests: the signals so far that ask to stop; their handler adds to it."""
    code, deadline = 0, float("inf")
    while any(host.process.poll() is None for host in hosts):
        failed = next((host.process.returncode for host in hosts if host.process.returncode), 0)
        if failed and not code:
            # The other ranks cannot go on without this host's.
            code, deadline = failed, time.monotonic() + GRACE
            for host in hosts:
                host.stop()
        if requests:
            requests.clear()
            for host in hosts:
                host.stop()
        if time.monotonic() > deadline:
            for host in hosts:
                host.process.kill()
        time.sleep(0.1)
    for host in hosts:
        host.copier.join(5)
    # `% 256` turns the -15 of SIGTERM into 241, as the exit code of a process; `run.py` recognises it.
    return code or next((host.process.returncode % 256 for host in hosts if host.process.returncode), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

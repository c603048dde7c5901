"""Script that the launcher starts on every rank to evaluate a checkpoint; see neoxargs/train/evaluate.py."""

import sys

from neoxargs.train.rank import run_program

if __name__ == "__main__":
    sys.exit(run_program("eval", sys.argv[1:]))

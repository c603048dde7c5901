"""Script that the launcher starts on every rank to train; see neoxargs/train/run.py."""

import sys

from neoxargs.train.rank import run_program

if __name__ == "__main__":
    sys.exit(run_program("train", sys.argv[1:]))

"""Script that the launcher starts on every rank to generate text; see neoxargs/train/generate.py."""

import sys

from neoxargs.train.rank import run_program

if __name__ == "__main__":
    sys.exit(run_program("generate", sys.argv[1:]))

"""Script that the launcher starts on every rank to evaluate a checkpoint; see neoxargs/train/evaluate.py."""

import sys

from neoxargs.train.rank import evaluation

if __name__ == "__main__":
    sys.exit(evaluation(sys.argv[1:]))

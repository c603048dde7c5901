"""What the launcher starts on every rank to evaluate a checkpoint; see neoxargs/train/evaluate.py."""

import sys

from neoxargs.train.evaluate import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Script that the launcher starts on every rank to train; see neoxargs/train/run.py."""

import sys

from neoxargs.train.rank import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

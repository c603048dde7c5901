"""What the launcher starts on every rank of a training run; see neoxargs/train/run.py."""

import sys

from neoxargs.train import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

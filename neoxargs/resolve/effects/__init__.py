"""Settings that `train.py` does not support, or ignores. They are not checked for users' own scripts."""

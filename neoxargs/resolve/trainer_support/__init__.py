"""What `train.py` does not support, and what it ignores. Users' own scripts are not checked."""

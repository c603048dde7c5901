"""What our own `train.py` cannot run, and what it ignores; nothing is known of a script of the user's own."""

"""What a rank runs in training, evaluation and generation."""

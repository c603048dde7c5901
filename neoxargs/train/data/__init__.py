"""Text to token files (`build`), token files to batches (`datasets`)."""

"""Checkpoints: saving, loading, the folder on disk, continuing with another layout."""

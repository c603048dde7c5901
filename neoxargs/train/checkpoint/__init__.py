"""Checkpoints: saving, loading, the folder on disk, continuing on another layout."""

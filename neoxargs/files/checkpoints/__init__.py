"""Folders of checkpoints: which are complete, and the digests of their files."""

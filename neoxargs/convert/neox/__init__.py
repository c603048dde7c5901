"""Checkpoints in GPT-NeoX's format."""

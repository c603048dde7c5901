"""Batches of token files, in GPT-NeoX's order or others."""

"""Samples from token files: which tokens make sample i, in GPT-NeoX's order or of whole documents."""

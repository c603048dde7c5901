"""Checks of training data, tokenizers and prompts."""

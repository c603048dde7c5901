"""Soft prompt tuning: trained embeddings before the text, in a frozen model."""

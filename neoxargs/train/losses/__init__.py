"""Losses: cross entropy, preferences, rewards, and means over ranks."""

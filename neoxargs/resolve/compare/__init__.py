"""How two configurations differ, and what a difference changes."""

"""GPT-NeoX's YAML of any year."""

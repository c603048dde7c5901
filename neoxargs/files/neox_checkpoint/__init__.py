"""GPT-NeoX's checkpoints: their files and what is in them, read without torch and without running anything."""

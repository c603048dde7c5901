"""GPT-NeoX's checkpoints as torch tensors: loading onto any layout, importing, exporting."""

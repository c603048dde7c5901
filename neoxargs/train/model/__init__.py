"""The GPT as readable single-device code; its parallel layers come from `train/parallel`."""

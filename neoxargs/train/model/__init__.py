"""The GPT. It reads as code of one device; where ranks communicate, it calls `train/parallel`."""

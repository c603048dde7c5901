"""One configuration for its receivers: DeepSpeed's launcher and JSON, our ranks, GPT-NeoX's scripts, Megatron-LM."""

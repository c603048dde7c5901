"""The configuration in the form of each receiver: DeepSpeed's runner and JSON, ranks, GPT-NeoX scripts, Megatron-LM."""

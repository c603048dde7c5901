"""One YAML file for a GPT training run on DeepSpeed and Megatron."""

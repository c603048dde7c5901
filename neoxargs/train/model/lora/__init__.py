"""LoRA: adapters beside the matrices of a frozen model."""

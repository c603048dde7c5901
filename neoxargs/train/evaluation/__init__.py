"""Tasks, prompts and perplexity."""

"""A module per family of models of Hugging Face."""

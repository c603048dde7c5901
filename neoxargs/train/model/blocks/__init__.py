"""The layers of the model, a module per kind."""

"""Recurrent layers, which take the place of attention and feed-forward in a layer of `attention_config`."""

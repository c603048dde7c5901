"""Mixture of experts: the feed-forward of a layer that sends each token to a few of many expert networks."""

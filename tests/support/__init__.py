"""Helpers that several tests share: small models, ranks, processes, clusters, reference data."""

"""What several tests use: small models, ranks, processes, clusters, tables of reference data."""

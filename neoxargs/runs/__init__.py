"""A request to a run: configuration, hosts, launcher; its record, lock and fingerprints."""

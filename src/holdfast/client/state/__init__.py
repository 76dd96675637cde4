"""What a client knows: the cluster, its grants, its leases."""

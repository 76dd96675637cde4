"""A client's state: the cluster as it knows it, its grants, its leases."""

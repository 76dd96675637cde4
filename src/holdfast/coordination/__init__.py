"""Who leads, and the log: one small interface, kept by SQLite, etcd, ZooKeeper, or memory for simulation."""

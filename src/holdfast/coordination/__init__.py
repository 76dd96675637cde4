"""Leadership and the log: one small interface, implemented on SQLite, etcd, ZooKeeper, or memory for simulation."""

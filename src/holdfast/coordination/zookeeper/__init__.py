"""Coordination in ZooKeeper."""

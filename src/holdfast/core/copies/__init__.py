"""Copies between nodes and disks: recovery, evacuation, offload."""

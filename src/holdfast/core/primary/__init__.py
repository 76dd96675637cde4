"""Data of a primary alone, beside the state: free space, deadlines, claims, copies, and how its sessions stand."""

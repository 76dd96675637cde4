"""A standby that holds the tail of the log, so that puts need not wait for the log (durability `standby`, ADR 70)."""

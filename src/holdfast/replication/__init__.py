"""The log between masters: batches of records, snapshots, the writer of a primary and the reader of a standby."""

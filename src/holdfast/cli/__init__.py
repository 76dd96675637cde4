"""The command line: one module per group of verbs, thin over the public client and the processes."""

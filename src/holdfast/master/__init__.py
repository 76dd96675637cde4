"""The master process: the engine that runs decisions, the RPC server in front of it, and its status views."""

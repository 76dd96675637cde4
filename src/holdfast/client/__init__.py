"""The client library: what is done is decided once, without I/O; a blocking and an asyncio shell carry it out."""

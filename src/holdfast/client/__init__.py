"""The client library: operations decide without I/O and are written once; a blocking and an asyncio shell run them."""

"""The promises, checked while a world runs."""

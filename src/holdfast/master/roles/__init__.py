"""The two roles of a master, and the life in which it alternates between them."""

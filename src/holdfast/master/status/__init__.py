"""What a master shows of itself."""

"""What only a primary keeps, beside the state."""

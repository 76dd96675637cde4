"""The engine of a primary: requests are decided, applied and logged; replies, puts and commands wait here."""

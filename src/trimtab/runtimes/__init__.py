"""Where engines run; adapters without decisions."""

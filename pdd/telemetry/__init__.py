"""How the daemons write logs."""

"""Settings: file, environment and flags become frozen sections; all faults are told at once."""

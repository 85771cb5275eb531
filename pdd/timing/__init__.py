"""How long engine steps and transfers take on given hardware. Pure: no clock, no I/O.

Called by the synthetic engine, which sleeps for what is said here, and by whoever simulates.
"""

"""The processes: builds every object, turns messages into events and effects into messages."""

"""The ``pdd`` command: arguments in, text and exit status out. Decides nothing."""

"""``pdd doctor``: is this machine fit for its role, and how are the nodes of its cluster?

``machine`` and ``ucx`` look (UCX only in a child process, so that no tool ever holds a second copy
of it), ``judge`` turns what they saw into checks (pure), ``run`` puts the list together.
"""

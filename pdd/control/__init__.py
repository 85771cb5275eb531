"""gRPC between pdd's own processes: a node's stream to its scheduler, and relays between nodes.

Only this room, ``replication`` and the gateway's gRPC servicer know ``pdd.rpc``; here its
messages become ``core`` values and back. KV bytes never travel in protobuf.
"""

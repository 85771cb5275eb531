"""Keys of notify messages that are ours; systemd ignores what begins with X_."""

GRPC_ADDRESS_KEY = "X_PDD_GRPC"
HTTP_ADDRESS_KEY = "X_PDD_HTTP"

"""A stand-in for a daemon, which starts fast. Usage: fake_daemon.py NAME BEHAVIOUR [FILE]

ready         says READY, obeys SIGTERM
fail          prints two lines and exits with code 3
silent        never says READY
deaf          says READY, ignores SIGTERM
fail-again    READY in its first life (FILE tells), exits with code 4 in later ones
orphan        READY; has a child in a session of its own that ignores SIGTERM; pid of it in FILE
shared        READY; has the shared memory file FILE mapped
cluster       READY with a gRPC server on FILE (host:port) that lists node prefill-0 and decode-0
"""

import os
import signal
import socket
import sys

IGNORING_CHILD = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
signal.pause()
"""


def notify(**fields: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect("\0" + os.environ["NOTIFY_SOCKET"].removeprefix("@"))
        sender.send("\n".join(f"{key}={value}" for key, value in fields.items()).encode())


def serve_list_nodes(address: str) -> object:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc

    class Servicer(cluster_pb2_grpc.ClusterServicer):
        def ListNodes(self, _request, _context):
            response = cluster_pb2.ListNodesResponse()
            for name in ("prefill-0", "decode-0"):
                node = response.nodes.add(role=name.split("-")[0], state="ready", block_count=9)
                node.identity.name = name
            return response

    server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    cluster_pb2_grpc.add_ClusterServicer_to_server(Servicer(), server)
    server.add_insecure_port(address)
    server.start()
    return server


def main(name: str, behaviour: str, file: str = "") -> None:
    kept: list[object] = []
    print(f"{name} lives as {os.getpid()}", flush=True)
    notify(STATUS="loading")
    if behaviour == "fail":
        print("first line of trouble\nlast line of trouble", flush=True)
        sys.exit(3)
    if behaviour == "fail-again":
        if os.path.exists(file):
            sys.exit(4)
        open(file, "w").close()
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "orphan":
        import subprocess

        child = subprocess.Popen(
            [sys.executable, "-S", "-c", IGNORING_CHILD],
            start_new_session=True,
            stdout=subprocess.PIPE,
        )
        child.stdout.readline()
        kept.append(child)
        with open(file, "w") as pid_file:
            pid_file.write(str(child.pid))
    if behaviour == "shared":
        import mmap

        with open(file, "w+b") as shared:
            shared.truncate(4096)
            kept.append(mmap.mmap(shared.fileno(), 4096))
    if behaviour == "cluster":
        kept.append(serve_list_nodes(file))
    if behaviour != "silent":
        address = {"X_PDD_GRPC": file if behaviour == "cluster" else f"{name}:1"}
        if name.startswith("scheduler"):
            address["X_PDD_HTTP"] = name
        notify(READY="1", **address)
    signal.pause()


if __name__ == "__main__":
    if "deaf" not in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        main(*sys.argv[1:])

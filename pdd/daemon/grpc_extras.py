"""gRPC health checking and server reflection, the same on every daemon."""

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection


async def add_health_and_reflection(server: grpc.aio.Server, *service_names: str) -> None:
    """Serve ``grpc.health.v1.Health`` and reflection. ``service_names``: full proto names."""
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    # "" stands for the server as a whole and is SERVING from the start.
    for name in service_names:
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection(
        (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )

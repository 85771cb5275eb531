"""What to do when a scheduler cannot be reached. For the messages of commands."""

_NOT_CONNECTED = ("failed to connect", "errors resolving")
"""How gRPC's reason begins when no connection came about. A scheduler that answers UNAVAILABLE has
a reason of its own."""


def reason_with_advice(details: str | None) -> str:
    """gRPC's reason, and behind one that no connection came about what to look at."""
    reason = details or "no reason given"
    if not reason.startswith(_NOT_CONNECTED):
        return reason
    return (
        f"{reason}; does a scheduler run there, is this its gRPC address ('pdd up' prints it), "
        "not that of HTTP, and does it want --ca, --certificate and --key?"
    )

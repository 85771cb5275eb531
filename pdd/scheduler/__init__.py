"""Decides where requests run. Pure: events and the time go in, effects come out.

One object, ``core.SchedulerCore``, owns the life of every request:

    QUEUED ──place──► PREFILLING ──first token──► TRANSFERRING ──ready──► DECODING ──► FINISHED
       │                  │  │ (one token asked, or it ended the output) ───────────────►  ▲
       │                  │  └ path local: tokens flow at once ──────────► DECODING        │
       │                  ▼                            ▼                       ▼           │
       ◄────────── a node it needs is lost or fails: next generation, placed anew          │
       └─ rejected, cancelled, past its deadline, out of attempts ─────────────────────────┘

Every attempt has a generation; what an older generation's node still says is ignored. Load is
derived from leases that live requests hold, never from counters that could leak.
"""

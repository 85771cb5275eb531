"""Who may speak as whom: certificates, and the one place that makes gRPC credentials of them.

    pdd certs init ──► ca.crt, ca.key          (authority)
    pdd certs issue ─► NAME.crt, NAME.key      URI SAN pdd://CLUSTER/ROLE/NAME   (identity)
    [tls] of a daemon ─► checked at load       (check) ─► TlsSecurity (security)
                                                             ├─ bind, channel: both sides verified
                                                             └─ caller: who is it, for each call

TLS says that the peer holds a key which the cluster's authority signed, and at which hosts it may
be found. What a message then claims is compared with the certificate's identity by ``claims``:
the ``control`` and ``replication`` rooms ask it before they believe a name. Without [tls] there is
``PlainSecurity``, which binds and dials loopback only.
"""

"""The raft driver's side of the world: disk, network, clients, and the loop that joins them.

    clients --> client_service --+                    +--> storage (wal, snapshots) --> disk
                                 v                    |
    peers ----> peer_service --> driver <--> RaftCore +--> transport (peer_sender) --> peers
                                                      +--> Applier --> state machine

On disk
    errors, filesystem, record, batch, segment, wal, replay, snapshots, storage
    directory_lock   one process per data directory
    unix_socket      how a group of one is reached
    offline          replacing a dead replica, with the group stopped
Between replicas
    grpc_options, hello, peer_queue, peer_sender, peer_service, snapshot_stream, transport
Driving
    inbox, ticks, submissions, watching, driver, client_service
    replica          one replica put together; replica_main: its process, in tests and drills
For clients
    leader_finder, replica_link, client
Proof
    linearizability  is this history one that a single copy could have produced?
    kv_machine       a small state; local_group: replica processes on this machine
    bench, fsync_probe, percentiles      `pdd bench raft`
    drill/                               `pdd drill raft`
"""

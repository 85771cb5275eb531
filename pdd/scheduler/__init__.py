"""Decides where requests run. Pure: events and the time go in, effects come out.

One object, ``core.SchedulerCore``, owns the life of every request:

    QUEUED ──place──► PREFILLING ──first token──► TRANSFERRING ──ready──► DECODING ──► FINISHED
       │                  │  │ (one token asked, or it ended the output) ───────────────►  ▲
       │                  │  └ path local: tokens flow at once ──────────► DECODING        │
       │                  ▼                            ▼                       ▼           │
       ◄────────── a node it needs is lost or fails: next generation, placed anew          │
       └─ rejected, cancelled, past its deadline, out of attempts ─────────────────────────┘

A request with several choices (``n``) is one request here: one lease, one attempt at a time. ::

    prefill node   prompt once ──► n first tokens, drawn with seed, seed + 1 ... ──► client
         │ one transfer                │ GiveFirstToken: of all that have not ended
         ▼                             ▼
    decode node    prompt's blocks ──► fork: full blocks shared, the last one copied ──► n outputs

===============================  =================================================================
what happens                     what is done
===============================  =================================================================
one choice ends before others    its end is told at once, its part of the lease is free, the others
                                 go on; the request completes with its last choice
its first token ends it          it is not handed over; if all end so, nothing is decoded
the engine fails one choice      the attempt fails as a whole; all open choices are resumed
a node is lost, or preempted     next generation, with what each open choice has emitted; tokens
by ``growth``                    that were shown are not sampled again, ended choices not run again
... between two first tokens     likewise: the client may have one, so the prompt is computed where
                                 the output goes on (path local)
the client leaves                one cancel per node ends all choices in whatever phase they are
no block for a fork's copy       (in the engine) that choice waits and computes what is not cached;
                                 ``decode_computed_prompt_tokens`` says so
more than any node can run       400 naming ``n``, before anything is started
an older node                    does not say that it forks, and is given single choices only
===============================  =================================================================

A prefix that the prefill node pulls
------------------------------------
The decode node of a conversation holds what a prefill node does not: the answers of earlier turns.
Where they come sooner than they are computed (``policy.pull``), the plan says so to both. ::

    prefill job: reserves blocks ──ticket──► decode job of the same request: has its own cached
         ◄───── the prefix it lacks ────────   prefix reserved anyway, and lends it
    computes the rest
         ───── blocks the other lacks ──────► as always

    what happens                       what is done
    the decode node evicted some       its job lends what is left: that is pulled, and the rest
                                       computed at once; counted (``not_held_pulls``), no fault
    it does not come within            the ticket is cancelled, its blocks stay quarantined until
    ``wait_s``, or comes damaged       nothing can write to them; computed (``failed_pulls``)
    the decode job has not begun yet   the ticket is kept for it, at most for ``wait_s``
    prefill job cancelled meanwhile    its blocks come back when the transfer is quiet
    decode job cancelled meanwhile     the lent blocks stay quarantined until nothing reads them
    nobody asks for the loan           it ends when the decode job's own blocks are there
    either node is lost                as without a pull: the request is placed anew
    it was slow                        counts against the link: the next one is computed sooner

Every attempt has a generation; what an older generation's node still says is ignored. Load is
derived from leases that live requests hold, never from counters that could leak.

Several schedulers
------------------
Each has a core and sees every node. The one whose replica leads the group's log *leads*: it gives
places. The one with a request's client *holds* it: its core runs the request's whole life but the
choice of nodes, which is why running streams need no leader.

    client ── holder ──told, then each event of the request──► leader
                │  ◄──place given (nodes, grant), taken, refused──┘
                ├──submit, first token, cancel──► nodes
                └──◄── every frame of the request, straight from the node

Both cores step the request with the same events and count its attempts alike, so that what crosses
on the wire is told from what is old by its generation. ``group_events`` is what they say,
``following`` the holder's side, ``leading`` the leader's.

    what is lost               what happens
    leader                     its replica's peers elect (or it hands over when it stops: nobody
                               waits); holders tell the next leader all they have, as it stands;
                               it places after the last of them has told, or half a second
    leader's process stands    its replica hands leadership over after a second without a word
    holder                     its streams break; nodes hold their sequences for whichever scheduler
                               their clients come back to (it seeks them there, and holds them from
                               then on); the leader keeps their leases for as long
    a node                     as with one scheduler; holder and leader may hear of it in any order
    holder-leader stream       the holder asks again and tells all anew
    majority                   running streams end as usual; new ones wait, within their deadline;
                               cordons and joins of new lives are not acknowledged
    two leaders for a moment   both may promise the same blocks; who runs keeps what it fills, who
                               does not fit is planned anew when the new one is told
"""

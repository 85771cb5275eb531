"""Which duty each node has, prefill or decode, and how that changes while it runs.

A node's *duty* (``Node.role``) is what the scheduler gives it to do. Its configuration names the
one that it begins with (``Node.home_role``). The engine is the same for both: every job says itself
what it is, and blocks travel either way, so that a change of duty costs no restart and the prefix
cache stays. Who decides, the first that speaks:

    node.pin_role in its configuration ─► operator (`pdd node role`) ─► controller ─► configuration

A switch, seen from one node:

    old duty ──begin──► takes nothing new, finishes what it has, ──holds nothing──► new duty
                        is introduced to its new peers
                              └─ deadline, last decode node, another word ─► abandoned: old duty

``demand`` measures how many nodes' worth of work each duty has, ``controller`` wishes for a switch
(hysteresis, minimums, pauses), ``goodput`` keeps how requests ended and which duty a late one was
late by, ``guard`` compares before and after, ``switches`` does it, ``book`` keeps it all.

What goes wrong, and what is done:

    ============================ ============================================================
    node dies in mid-switch      the switch is over (abandoned, named); what it ran goes on
                                 elsewhere as after any loss. It comes back with the duty it had:
                                 operator's, else controller's, else its configuration's; a role
                                 that an operator has set is taken at once, it holds nothing then
    scheduler dies in mid-switch what operators have set, and what the controller had done, is
                                 agreed on by the schedulers and stays: a node that still runs
                                 outputs joins as a decode node and changes when they have ended.
                                 A switch that the controller had begun is forgotten
    operator in mid-switch       the operator's word counts: a controller's switch that goes the
                                 other way is abandoned, one that goes the same way becomes theirs
    last node of a role          the last decode node that takes work never leaves: asked by hand
                                 it is refused, in mid-switch it goes back. The controller also
                                 keeps ``*_count_min``. By hand the last prefill node may go:
                                 prompts are then computed on decode nodes
    node runs longer than        abandoned at ``switch_deadline_s``: it takes its old duty up again;
    the deadline                 an operator's wish is tried again after ``cooldown_s``
    several schedulers           the one that leads measures and switches. The others change a node
                                 when they hear of it, each when what it holds there has ended;
                                 the next leader goes on from what is agreed on
    all nodes cordoned           nothing is measured and nothing moves; a role set by hand is taken
                                 by cordoned nodes too, which stay cordoned
    pinned node                  refused by hand, left alone by the controller
    node of another shape        left alone by the controller (``switches.misfit``)
    ============================ ============================================================
"""

"""A tour of the pages: what each shows, in the order of a newcomer's questions."""

from typing import NamedTuple


class Stop(NamedTuple):
    """One step of the tour, shown with the page that it describes."""

    page: str
    title: str
    text: str


STOPS = (
    Stop(
        "node",
        "Is my node well?",
        "The second line says it: ✓ helping means that exchanges with peers are being committed. A problem is the very first line, "
        "with the next command to try. Loss falls and accuracy rises together with the swarm; the curves say since when.",
    ),
    Stop(
        "swarm",
        "Who else is there?",
        "Every member that any attached node knows. Solid lines are pairs that exchange in this round, dotted ones other edges. "
        "Nobody is in charge: a member may leave or crash, and the others go on.",
    ),
    Stop(
        "peers",
        "Do they behave?",
        "What this node knows of each peer. `lately` are the last exchanges: the higher the bar the longer it took, × was not "
        "committed. Press enter for everything known of a peer.",
    ),
    Stop(
        "events",
        "What happened?",
        "The last 50 events, also in the log of the run directory. / filters by words, l by level, a shows all attached nodes.",
    ),
    Stop(
        "edge",
        "What is being exchanged?",
        "Each exchange with the peer that the arrow keys choose. Busy and timed out ones are harmless: the round goes on without them.",
    ),
    Stop(
        "node",
        "And then?",
        "m says in words what the swarm agreed on, d lets `starling doctor` check machine and network, o lists all nodes, "
        "? explains keys, signs and words. q leaves: the node keeps running.",
    ),
)

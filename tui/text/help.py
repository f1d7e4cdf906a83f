"""Keys, signs and words: one line each, with the meaning from the fourteenth column on; a line that begins with blanks continues it."""

KEYS = """\
1 2 3 4 5    Node, Swarm, Peers, Events, Edge
?            this page; ? esc q close it, enter begins a short tour
n  p         next and previous node, where there are several
↑ ↓          move and scroll; tab goes to the next list
o            all nodes in a list, to choose one
m            what the swarm agreed on, in words
d            starling doctor: check machine and network of this node
y            copy the peer id of the row, or of the node
t            dark and light theme
ctrl+p       all commands by name; screenshot and export too
q            quit (the node keeps running)
enter        on Peers: all that is known about a peer
s  r         on Peers: sort by the next column, reverse; or click it
/  l  a      on Events: filter by words, level, all nodes
space        in a replay: play and pause
← → home end in a replay: back, forward, beginning, end
x            in a replay: 1x, 4x, 16x\
"""
SIGNS = """\
–            not known (never 0)
!            a problem, a warning, or a peer in quarantine
● ○ …        training, waiting, starting or joining
✓ ← ✗        finished or committed, leaving or left, failed or dead
?  ⊘         suspected, banned
[ ]          the node that is shown
━  ┄         pairs that exchange in this round; other edges
⇄            a transfer under way
▲  ▼         sorted by this column, ascending or descending\
"""
WORDS = """\
round        some local steps, then an exchange with neighbors
computing    local steps per second of computing time
with waiting local steps per second of all time, waiting for peers
             included, over the same rounds
alone        in a demo: what one more node reaches that has the data of
             node 0 and no swarm
edge         a lasting pair of peers that exchange with each other
exchange     both ends apply it (committed), or neither
aborted      begun and given up; busy: the peer was in another one;
             timeout: no answer. The round goes on without it
distance     consensus distance: root mean square difference to the
             models of peers, per parameter
standing     probation, active, quarantine, ban; trusted by you
score        faults, halved every five minutes
lately       on Peers: the last exchanges with it; a higher bar took
             longer, × was not committed
contribution committed exchanges, decayed, 20 at most
staleness    share of recent exchanges that the peer did not answer
clipped      share of recent exchanges in which its update was clipped
kept         on Edge: share of the update kept by clipping; 100 % is
             not clipped
ε            privacy loss of this node's data (docs/privacy.md)
known by     attached nodes that know this member\
"""

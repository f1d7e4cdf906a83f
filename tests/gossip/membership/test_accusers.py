"""Members that accuse all others all the time: the cost, and that no honest member is declared dead."""

from itertools import count

import pytest

from starling.gossip.membership.events import Died, Send, Suspected
from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import Probe, Rumor, Spread
from tests.harness.detectors import TIMING, DetectorSwarm, loss

EVERY_S = 0.1  # each accuser reports everybody to everybody
BYTES_PER_S, PROBES_PER_S = 8_000, 8.0  # bounds for an honest member of eight: 74 and 1 without accusers


class Counted(DetectorSwarm):
    """Counts what each member sends."""

    def do(self, source, outputs):
        for output in outputs:
            if isinstance(output, Send):
                self.octets[source] += len(encode(output.message))
                self.octets[source, "probes"] += isinstance(output.message, Probe)
        super().do(source, outputs)


@pytest.mark.parametrize(
    ("accusers", "lost", "delay_s", "seconds"),
    [
        (2, 0.05, 0.02, 4.0),
        *(
            pytest.param(accusers, *conditions, 60.0, marks=[pytest.mark.acceptance, pytest.mark.slow])
            for accusers in (1, 2)
            for conditions in ((0.0, 0.02), (0.05, 0.02), (0.2, 0.02), (0.0, 0.2), (0.0, 0.4))
        ),
    ],
)
def test_two_accusers_of_eight_cause_no_deaths_and_a_bounded_number_of_bytes(accusers, lost, delay_s, seconds):
    swarm = Counted(8, delay_s=delay_s)
    swarm.run(5.0)
    swarm.lost = loss(lost, 1)
    *honest, _, _ = swarm.nodes
    liars = [peer for peer in swarm.nodes if peer not in honest][:accusers]
    swarm.octets.clear()
    began = swarm.now
    for turn in count(1):
        for liar in liars:
            known = swarm.nodes[liar].member_list.members
            said = tuple(Rumor(peer, known[peer].record.incarnation, known[peer].record.version, "suspect", liar) for peer in honest)
            for victim in honest:
                swarm.put(swarm.now + delay_s, victim, (liar, encode(Spread((), said))))
        if swarm.run(began + turn * EVERY_S) >= began + seconds:
            break
    late = [event for at, who, event in swarm.events if at > began and who in honest]
    assert any(isinstance(event, Suspected) for event in late), "they are believed enough to be looked into"
    assert not [event for event in late if isinstance(event, Died)]
    most = 1 + seconds / TIMING.timeout_s
    assert all(0 < swarm.nodes[peer].own.version <= most for peer in honest), "refutations"
    assert max(swarm.octets[peer] for peer in honest) <= BYTES_PER_S * seconds
    assert max(swarm.octets[peer, "probes"] for peer in honest) <= PROBES_PER_S * seconds

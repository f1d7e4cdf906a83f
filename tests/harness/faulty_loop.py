"""A swarm as a loop over nodes in which exchanges are lost, proofs come late and nodes come and go: the ledger's own functions, by hand."""

import torch

from starling.gossip.mix import edge_ledger
from starling.gossip.mix.edge_ledger import opened
from starling.gossip.reference import Reference


class FaultyLoop:
    """`Reference` with faults, for mixing algorithms that average."""

    def __init__(self, peers, x, mixer, terms, selector, seed, alive, most):
        self.born = [0] * len(peers)
        self.closed = {}
        self.loop = Reference(peers, x, mixer, terms, selector, seed, self._incarnation)
        self.alive, self.most, self.pending = set(alive), most, {}

    def _incarnation(self, initiator, responder):
        i, j = self.loop.peers.index(initiator), self.loop.peers.index(responder)
        return self.born[i] + self.born[j] + self.closed.get((i, j), 0)

    def pair(self, one, other):
        return tuple(sorted((one, other), key=lambda row: self.loop.peers[row]))

    def change(self, change):
        for row in change.left:
            for pair in [pair for pair in self.pending if row in pair]:
                self.resolve(pair)
        for row in (*change.left, *change.crashed):
            self.alive.discard(row)
            self.born[row] += 1
            for pair in [pair for pair in self.loop.turns if row in pair]:
                del self.loop.turns[pair]
                self.pending.pop(pair, None)
            for other in self.alive:
                self.keep(other, edge_ledger.revoke(self.loop.ledgers[other], self.loop.peers[row]))
        for pair in (self.pair(*pair) for pair in change.closed):
            self.resolve(pair)
            if self.loop.turns.pop(pair, 0):
                self.closed[pair] = self.closed.get(pair, 0) + 1
            for me, other in (pair, pair[::-1]):
                self.keep(me, edge_ledger.settle(self.loop.ledgers[me], self.loop.peers[other], self.most))
        for row, source in change.joined:
            self.loop.x[row] = self.loop.x[source]
            self.loop.states[row] = self.loop.mixer.start(self.loop.x[row].clone())
            self.loop.ledgers[row] = opened(self.loop.x[row])
            self.alive.add(row)

    def keep(self, row, book):
        self.loop.ledgers[row] = book
        if self.loop.mixer.edge.size(1):
            self.loop.states[row] = self.loop.mixer.corrected(self.loop.states[row], book.total)

    def resolve(self, pair):
        if pair in self.pending:
            self.mix(pair[1], [self.pending.pop(pair)], self.loop.x[pair[1]].clone(), None)

    def mix(self, row, effects, frozen, phase):
        loop = self.loop
        shared, book = edge_ledger.average(
            loop.mixer.edge, loop.ledgers[row], frozen, sorted(effects, key=lambda effect: effect.peer)
        )
        self.keep(row, book)
        loop.x[row], loop.states[row] = loop.mixer.absorb(loop.states[row], loop.x[row].clone(), shared, phase)

    def work(self, phase, local):
        for row in sorted(self.alive):
            if local is not None:
                self.loop.x[row] = local(row, phase.round, self.loop.x[row].clone(), self.loop._correct(row))

    def round(self, phase, local, meetings, fate):
        self.work(phase, local)
        frozen = [x.clone() for x in self.loop.x]
        gathered = {row: [] for row in self.alive}
        for place in range(len(meetings)):
            self.meet(phase, meetings, fate, place, frozen, gathered)
        for row, effects in gathered.items():
            self.mix(row, effects, frozen[row], phase)

    def slot(self, phase, local, visits, fate):
        self.work(phase, local)
        for place in range(len(visits)):
            one, other = int(visits.one[place]), int(visits.other[place])
            gathered, frozen = {one: [], other: []}, [x.clone() for x in self.loop.x]
            answering = self.pair(one, other)[1]
            mine = frozen[answering]
            self.meet(phase, visits, fate, place, frozen, gathered, exclusive=True)
            frozen[answering] = mine
            for row, effects in gathered.items():
                self.mix(row, effects, frozen[row], phase)

    def meet(self, phase, meetings, fate, place, frozen, gathered, *, exclusive=False):
        pair = i, j = self.pair(int(meetings.one[place]), int(meetings.other[place]))
        if fate.lost[place]:
            self.loop._begin(i, j)
            return
        if pair in self.pending:
            gathered[j].append(self.pending.pop(pair))
        if exclusive:
            frozen[j] = self.less_pending(frozen[j], pair)
        theta = (float(meetings.forth[place]) + float(meetings.back[place])) / 2.0
        to_i, to_j = self.loop._exchange(i, j, theta, frozen, phase)
        gathered[i].append(to_i)
        if fate.unproven[place]:
            self.pending[pair] = to_j
        else:
            gathered[j].append(to_j)

    def less_pending(self, x, pair):
        x = x.clone()
        elsewhere = ((self.loop.peers[p[0]], e) for p, e in self.pending.items() if p[1] == pair[1] and p != pair)
        for _other, effect in sorted(elsewhere, key=lambda told: told[0]):
            x[effect.support.index(x.numel())] += effect.theta * effect.value
        return x

    def owed(self):
        """What responders have yet to take off, from their models and from their corrections."""
        models = torch.zeros_like(self.loop.x[0], dtype=torch.float64)
        flows = torch.zeros_like(models)
        for effect in self.pending.values():
            index = effect.support.index(models.numel())
            models[index] -= effect.theta * effect.value.double()
            flows[index] -= effect.gain * effect.value.double()
        return models, flows

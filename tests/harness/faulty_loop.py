"""A swarm as a loop over nodes with lost exchanges, late proofs and churn, calling the ledger's own functions by hand."""

from starling.gossip.api import Effect
from starling.gossip.compress.select.coordinates import with_wish
from starling.gossip.mix import borne, edge_ledger
from starling.gossip.mix.edge_ledger import opened
from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from tests.harness.reference import Reference


class FaultyLoop:
    """`Reference` with faults, for mixing algorithms that average; with `limit` > 0 selectors use the last exchange, and responders
    request coordinates.
    """

    def __init__(self, peers, x, mixer, codec, selector, seed, alive, most, limit=0):
        self.born = [0] * len(peers)
        self.closed = {}
        self.loop = Reference(peers, x, mixer, codec, selector, seed, self._incarnation)
        self.alive, self.most, self.pending, self.limit = set(alive), most, {}, limit
        self.known, self.wishes, self.sizes = {}, {}, []

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
            self.mix(pair[1], [self.pending.pop(pair)[0]], self.loop.x[pair[1]].clone(), None)

    def mix(self, row, effects, frozen, phase):
        loop = self.loop
        shared, book = edge_ledger.average(loop.mixer.edge, loop.ledgers[row], frozen, sorted(effects, key=lambda effect: effect.peer))
        self.keep(row, book)
        loop.x[row], loop.states[row] = loop.mixer.absorb(loop.states[row], loop.x[row].clone(), shared, phase)

    def work(self, phase, local):
        for row in sorted(self.alive):
            if local is not None:
                self.loop.x[row] = local(row, phase.round, self.loop.x[row].clone(), self.loop.correct(row))
            state, x = self.loop.states[row], self.loop.x[row].clone()
            self.loop.x[row], self.loop.states[row] = self.loop.mixer.publish(state, x, phase)

    def round(self, phase, local, meetings, faults):
        self.work(phase, local)
        frozen = [x.clone() for x in self.loop.x]
        gathered = {row: [] for row in self.alive}
        for place in range(len(meetings)):
            self.meet(phase, meetings, faults, place, frozen, gathered)
        for row, effects in gathered.items():
            self.mix(row, effects, frozen[row], phase)

    def slot(self, phase, local, visits, faults):
        self.work(phase, local)
        for place in range(len(visits)):
            one, other = visits.ends[:, place].tolist()
            gathered, frozen = {one: [], other: []}, [x.clone() for x in self.loop.x]
            answering = self.pair(one, other)[1]
            mine = frozen[answering]
            self.meet(phase, visits, faults, place, frozen, gathered, exclusive=True)
            frozen[answering] = mine
            for row, effects in gathered.items():
                self.mix(row, effects, frozen[row], phase)

    def meet(self, phase, meetings, faults, place, frozen, gathered, *, exclusive=False):
        pair = i, j = self.pair(*meetings.ends[:, place].tolist())
        if pair in self.pending and not faults.lost[place]:
            gathered[j].append(self.committed(j, i, *self.pending.pop(pair)))
        if exclusive:
            frozen[j] = self.less_pending(frozen[j], pair)
        theta = float(meetings.weights[:, place].mean())
        both = self.transact(i, j, theta, frozen, phase, lost=bool(faults.lost[place]), exclusive=exclusive)
        if both is not None:
            gathered[i].append(self.committed(i, j, *both[0]))
            if faults.unproven[place]:
                self.pending[pair] = both[1]
            else:
                gathered[j].append(self.committed(j, i, *both[1]))

    def transact(self, i, j, theta, frozen, phase, *, lost, exclusive):
        """Do `Reference._exchange` with the selectors' estimates; return (effect, own values) of both ends; None if it is lost."""
        loop, dim, dtype = self.loop, frozen[i].numel(), frozen[i].dtype
        name, inc, seq = loop.begin(i, j)
        quantize = (loop.seed, "quantize", name, inc, seq)
        support = loop.selector.select(frozen[i], self.known_of(i, j), derive(loop.seed, "mask", name, inc), seq)
        wish = self.wishes.pop((i, j), None)
        if wish is not None:
            support = with_wish(support, wish, self.limit)
        asking, answering = generator(*quantize), generator(*quantize)
        request = loop.codec.encode_request(frozen[i], support, asking)
        self.sizes.append((len(request), 0))
        if lost:
            return None
        decoded, theirs = loop.codec.decode_request(request, dim, dtype)
        mine = decoded.take(frozen[j])
        wish = loop.selector.select(frozen[j], self.known_of(j, i), 0, seq) if self.limit else None
        response, _ = loop.codec.encode_difference(mine - theirs, dim, answering, wish)
        self.sizes[-1] = (len(request), len(response))
        v, self.wishes[i, j] = loop.codec.decode_response(response, support, dim, dtype, self.limit)
        s = loop.borne_out(i, j)
        gain = s * loop.mixer.edge.gain(theta, support.ratio(dim), phase)
        to_i = Effect(loop.peers[j], support, v, theta, gain, keeps=borne.kept(s))
        return (to_i, support.take(frozen[i])), (to_i.opposite(loop.peers[i]), mine)

    def committed(self, me, peer, effect, mine):
        """Return the effect, and update the selectors' estimates with the peer's values."""
        if self.limit:
            after = mine + (1.0 - effect.theta) * effect.value
            self.known[me, peer] = effect.support.put(self.known_of(me, peer), after)
        return effect

    def known_of(self, me, peer):
        return self.known.get((me, peer), self.loop.origin) if self.limit else None

    def less_pending(self, x, pair):
        x = x.clone()
        for other, (effect, _mine) in self.pending.items():
            if other[1] == pair[1] and other != pair:
                x[effect.support.index(x.numel())] += effect.theta * effect.value
        return x

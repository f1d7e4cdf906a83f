"""Break single lines of the cores and check that their tests notice: `python tools/mutants.py [FILE …]`.

The checkout is copied; in the copy one line after another is changed, the tests of its code are run, and the line is restored. A mutant
that no test detects survives. Exit status: 0 if all were detected, 1 if one survives, its line no longer exists, or its tests fail anyway.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken line.

    Args:
        file: from the root.
        text: part of the line; it occurs once in the file.
        broken: what it becomes.
        tests: patterns of files below tests/, of which at least one must fail.
    """

    file: str
    text: str
    broken: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant("gossip/mix/flows.py", "LARGEST_THETA) * ratio / (", "LARGEST_THETA) / (", ("**/test_pet.py",)),
    Mutant("gossip/mix/edge_ledger.py", "effect.gain * change[part]", "-effect.gain * change[part]", ("**/test_pet.py",)),
    Mutant("node/engine/exchange/differences.py", "s = min(ours, remote)", "s = ours", ("**/exchange/test_contract.py",)),
    Mutant("node/engine/exchange/differences.py", "self._least_borne <= remote <= 1.0", "True", ("**/exchange/test_contract.py",)),
    Mutant("node/engine/exchange/attachments.py", "replace(effect, memory=learned)", "effect", ("**/exchange/test_contract.py",)),
    Mutant("gossip/mix/pet.py", "            if given:", "            if False:", ("**/config/test_manifest.py",)),
    Mutant(
        "gossip/mix/edge_ledger.py",
        "(effect.theta * change[part]).add_(",
        "(1.0 * change[part]).add_(",
        ("**/test_edge_ledger.py", "**/test_pet.py"),
    ),
    Mutant("gossip/compress/select/low_rank.py", 'self.start(derive(seed, "turn", turn))', "self.start(seed)", ("**/test_low_rank.py",)),
    Mutant("gossip/exchange/edge_rules.py", "it.seq <= it.committed or ", "", ("**/test_edge.py",)),
    Mutant("gossip/exchange/edge_rules.py", "seq > self.provable else", "seq > self.provable + 1 else", ("**/test_edge.py",)),
    Mutant("gossip/exchange/pairwise.py", "if age & -age == age > 0 and", "if age > 0 and", ("**/test_pairwise.py",)),
    Mutant("gossip/exchange/pairwise.py", "self._attempts[peer] < MAX_ATTEMPTS:", "True:", ("**/test_pairwise.py",)),
    Mutant("gossip/exchange/pairwise.py", "if renewing or not isinstance", "if not isinstance", ("**/test_pairwise.py",)),
    Mutant("gossip/pipeline/stage.py", "if not self._asked[way, micro]:", "if False:", ("**/pipeline/test_stage.py",)),
    Mutant("gossip/pipeline/stage.py", "or key[1] > known[1]}", "or key[1] != known[1]}", ("**/pipeline/test_stage.py",)),
    Mutant("gossip/pipeline/waiting.py", "<= _place(known)):", "== _place(known)):", ("**/pipeline/test_waiting.py",)),
    Mutant("gossip/pipeline/waiting.py", "needed is None or said.done <= needed", "True", ("**/pipeline/test_waiting.py",)),
    Mutant("gossip/pipeline/waiting.py", "return behind or core.gave(stage, said.done)", "return True", ("**/pipeline/test_waiting.py",)),
    Mutant("gossip/pipeline/owed.py", "turn_s * 2**turns", "turn_s", ("**/pipeline/test_crew.py",)),
    Mutant("gossip/pipeline/freed_seats.py", "if voice < stage and stage in", "if stage in", ("**/pipeline/test_crew.py",)),
    Mutant("gossip/pipeline/crew_meeting.py", "if stage not in self.holding.why:", "if True:", ("**/pipeline/test_crew.py",)),
    Mutant("gossip/pipeline/crew_meeting.py", "if not self.holding.rests:", "if True:", ("**/pipeline/test_crew.py",)),
    Mutant("gossip/pipeline/freed_seats.py", "self.spare(stage)  # its", "pass  # its", ("**/pipeline/test_crew.py",)),
    Mutant(
        "gossip/pipeline/crew.py", "peers != company.peers or self.seats.peers", "peers != company.peers", ("**/pipeline/test_crew.py",)
    ),
    Mutant("gossip/pipeline/crew.py", "peers != company.peers or self.seats.peers", "True", ("**/pipeline/test_crew.py",)),
    Mutant("gossip/pipeline/holding.py", "{} if self.stage in rest else", "", ("**/pipeline/test_holding.py",)),
    Mutant("gossip/pipeline/holding.py", "if self._gave and behind in", "if behind in", ("**/pipeline/test_holding.py",)),
    Mutant("gossip/pipeline/holding.py", "or pieces <= self._got", "", ("**/pipeline/test_holding.py",)),
    Mutant("gossip/pipeline/holding.py", "(has.step != due or not has.left)", "has.step != due", ("**/pipeline/test_holding.py",)),
    Mutant("gossip/pipeline/holding.py", "and own.step == due and own.left > 0", "", ("**/pipeline/test_holding.py",)),
    Mutant("gossip/pipeline/meeting.py", "min(until, step + most)", "until", ("**/pipeline/test_meeting.py",)),
    Mutant("gossip/pipeline/minutes.py", "and ready.heard != self.heard", "and False", ("**/pipeline/test_crew.py",)),
    Mutant("gossip/pipeline/crew_meeting.py", "if differs and self.seats.equivocated(stage):", "if False:", ("**/pipeline/test_crew.py",)),
    Mutant(
        "gossip/pipeline/crew_meeting.py",
        "return stage if call.step >= here else call.stage",
        "return stage",
        ("**/pipeline/test_crew.py",),
    ),
    Mutant(
        "gossip/pipeline/crew_meeting.py", "if call.stage == stage and ready.turn >", "if ready.turn >", ("**/pipeline/test_adversary.py",)
    ),
    Mutant(
        "gossip/pipeline/crew_meeting.py",
        "and not differs and ready.signature == known.signature:",
        "and not differs:",
        ("**/pipeline/test_adversary.py",),
    ),
    Mutant(
        "gossip/pipeline/crew_meeting.py",
        "if evaluate and self.roll.trains(self.company.others):",
        "if False:",
        ("**/pipeline/test_adversary.py",),
    ),
    Mutant("gossip/pipeline/crew_meeting.py", "if mixed or not conclusion.steps:", "if mixed:", ("**/pipeline/test_adversary.py",)),
    Mutant("gossip/pipeline/minutes.py", "*states, call]", "*states]", ("**/pipeline/test_adversary.py",)),
    Mutant("gossip/pipeline/roll.py", "len({*of, step}) >", "len(self._frames) >", ("**/pipeline/test_adversary.py",)),
    Mutant(
        "gossip/pipeline/crew_step.py",
        "if self.evaluating and not isinstance",
        "if False and not isinstance",
        ("**/pipeline/test_adversary.py",),
    ),
    Mutant("gossip/pipeline/freed_seats.py", "self._followed | self.peers", "self._followed", ("**/pipeline/test_adversary.py",)),
    Mutant(
        "gossip/pipeline/owed.py",
        "self.unfit.of(stage) + self.costs.of(stage) / CALLS",
        "self.costs.of(stage) / CALLS",
        ("**/pipeline/test_adversary.py",),
    ),
    Mutant("gossip/pipeline/stage_assignments.py", "return () if me in gone else gone", "return gone", ("**/pipeline/test_adversary.py",)),
    Mutant("gossip/pipeline/roll.py", "self._numbers.get(crew, 0)", "0", ("**/pipeline/test_crew.py",)),
    Mutant("gossip/pipeline/later_rounds.py", "int(self.left)", "MOST", ("**/pipeline/test_crew.py",)),
    Mutant("gossip/pipeline/freed_seats.py", "self.owed.forgive()", "pass", ("**/pipeline/test_crew.py",)),
    Mutant("gossip/pipeline/crew_states.py", "if taking and not self.points", "if taking", ("**/pipeline/test_crew.py",)),
    Mutant("gossip/pipeline/copies.py", "if earlier < step}", "}", ("**/pipeline/test_crew.py",)),
    Mutant("gossip/pipeline/copies.py", "piece.offset % self.piece_bytes == 0 and", "", ("**/pipeline/test_crew.py",)),
    Mutant("node/extras/crew/daemon/stage_peers.py", "self._left.get(peer, until)", "until", ("**/crew/test_stage_peers.py",)),
    Mutant("gossip/chunks.py", "if not self.is_right(index, data):", "if False:", ("gossip/test_chunks.py",)),
    Mutant("gossip/chunks.py", "usual_s * AGAIN ** (len(asked) - 1)", "usual_s", ("gossip/test_chunks.py",)),
    Mutant("gossip/chunk_times.py", "usual_s = self.usual_s(peer)", "usual_s = self.usual_s()", ("gossip/test_chunk_times.py",)),
    Mutant("gossip/membership/roster.py", "peer in self._gone or ", "", ("gossip/membership/test_roster.py",)),
    Mutant("gossip/membership/roster.py", "away and peer in self._gone if known", "False if known", ("gossip/membership/test_roster.py",)),
    Mutant("gossip/membership/roster.py", "case Changed():", "case Joined():", ("gossip/membership/test_roster.py",)),
    Mutant("gossip/membership/roster.py", "now < self._newcomers.get(peer, -inf)", "now < inf", ("gossip/membership/test_roster.py",)),
    Mutant("gossip/membership/roster.py", "len(self._gone) > max(", "len(self._newcomers) > max(", ("gossip/membership/test_roster.py",)),
    Mutant("gossip/membership/suspicion.py", "accusers > most", "accusers >= most", ("gossip/membership/test_local_health.py",)),
    Mutant("gossip/wire/frames.py", "if len(frame) > limit:", "if len(frame) > 2 * limit:", ("gossip/wire/test_frames.py",)),
    Mutant("gossip/membership/suspects.py", "max(self.suspended_until, since", "max(0.0, since", ("gossip/membership/test_detector.py",)),
    Mutant("gossip/membership/suspects.py", ">= self.health.wait_s(rumor.peer):", ">= 0.0:", ("gossip/membership/test_detector.py",)),
    Mutant("gossip/membership/prober.py", "self._silent.pop(peer, now)", "now", ("gossip/membership/test_silence.py",)),
    Mutant("gossip/membership/prober.py", "heard = now -", "heard = False and now -", ("gossip/membership/test_silence.py",)),
    Mutant("gossip/exchange/wait_rules.py", "if not peer.silent:", "if True:", ("**/test_link_deadlines.py",)),
    Mutant("gossip/exchange/wait_rules.py", ", context.payload_s)\n", ")\n", ("**/test_link_deadlines.py",)),
    Mutant("gossip/exchange/lateness.py", "if owed:", "if False:", ("**/test_link_deadlines.py",)),
    Mutant("gossip/exchange/lateness.py", "self._opened[peer][1] <= round", "True", ("**/test_link_deadlines.py",)),
    Mutant("gossip/exchange/wait_rules.py", "context.shortest_s) + context.lag_s", "context.shortest_s)", ("**/test_link_deadlines.py",)),
    Mutant("gossip/exchange/wait_rules.py", "peer.withdrawn or context.out_of_phase:", "peer.withdrawn:", ("**/test_link_deadlines.py",)),
    Mutant("gossip/exchange/wait_rules.py", "if peer.needs_s is None:", "if True:", ("**/test_link_deadlines.py",)),
    Mutant("gossip/exchange/lateness.py", "first = peer not in self._needs_s", "first = True", ("**/test_link_deadlines.py",)),
    Mutant("gossip/exchange/wait_rules.py", 'context.position != "ahead":', "True:", ("**/test_link_deadlines.py",)),
    Mutant("gossip/exchange/sampled.py", "return answer, ()", "return answer, wake.claims", ("gossip/exchange/test_sampled.py",)),
    Mutant("gossip/exchange/pace.py", "lead > self.round else", "False else", ("**/test_pace_rounds.py",)),
    Mutant("gossip/mix/borne.py", "g.addcmul_(c, taken, value=-1.0)", "g.sub_(c)", ("gossip/mix/test_borne.py",)),
    Mutant("gossip/mix/borne.py", "1.0 - FORGOTTEN * (1.0 - s)", "1.0", ("gossip/mix/test_borne.py",)),
    Mutant("gossip/exchange/link_deadlines.py", " or self.lately_gone(peer))", ")", ("**/test_link_deadlines.py",)),
    Mutant("gossip/membership/member_list.py", "self._in_group[group] -= 1", "pass", ("**/test_address_quotas.py",)),
    Mutant("gossip/membership/member_list.py", "self._tombstones_in_group[group] -= 1", "pass", ("**/test_address_quotas.py",)),
    Mutant("gossip/membership/absences.py", "min(PROBATION * gone_s,", "min(gone_s,", ("**/test_absences.py",)),
    Mutant("gossip/membership/absences.py", "<= tolerable(max(others, 1))", "<= others", ("**/test_absences.py",)),
    Mutant("gossip/membership/prober.py", "since < now and self.view.present(peer):", "since < now:", ("**/test_absences.py",)),
    Mutant("gossip/membership/local_health.py", "2.0 * median(trips)", "0.0", ("**/test_absences.py",)),
    Mutant(
        "gossip/exchange/pace.py",
        "self.link_deadlines.exchange_s, self._unlinked, round)",
        "0.0, self._unlinked, round)",
        ("**/test_link_deadlines.py",),
    ),
    Mutant("gossip/exchange/pace.py", "more_s if self.under_way(peer) and", "more_s if", ("**/test_pairwise.py",)),
    Mutant("gossip/exchange/pace.py", " and not self.link_deadlines.hurried(peer) else", " else", ("**/test_pace_slots.py",)),
    Mutant("gossip/exchange/pace.py", "isinstance(request, Solicit) and self.under", "self.under", ("**/test_pace_slots.py",)),
    Mutant("gossip/exchange/edge.py", """ and self.outstanding.phase != "greeting")""", ")", ("**/test_pairwise.py",)),
    Mutant("gossip/exchange/pairwise.py", "edge.begun) or self.receives(peer)", "edge.begun)", ("**/test_pairwise.py",)),
    Mutant("gossip/exchange/pairwise.py", "edge.outstanding.round < oldest", "edge.outstanding.round < slot - 1", ("**/test_pairwise.py",)),
    Mutant("node/daemon/exchange/service.py", "if not wait.cancelled_caught:", "if False:", ("**/exchange/test_sending.py",)),
    Mutant("node/daemon/exchange/service.py", "move_on_after(self._usual_s())", "move_on_after(60.0)", ("**/exchange/test_sending.py",)),
    Mutant(
        "node/engine/forecast/step.py", "apart([*computed, update], clock)", "apart([update, *computed], clock)", ("**/test_forecast.py",)
    ),
    Mutant("gossip/exchange/sampled.py", "return self._redone(turn, now)", "return None", ("gossip/exchange/test_sampled.py",)),
    Mutant("gossip/exchange/sampled.py", "enough = 1 if now >= ", "enough = 9 if now >= ", ("gossip/exchange/test_sampled.py",)),
    Mutant("gossip/exchange/doubts.py", "[1] >= turn", "[1] < 0", ("gossip/exchange/test_sampled.py",)),
    Mutant("gossip/exchange/doubts.py", "turn <= last + LONGEST", "turn <= last", ("gossip/exchange/test_doubts.py",)),
    Mutant("gossip/exchange/doubts.py", "> IN_VAIN - 1", "> IN_VAIN", ("gossip/exchange/test_sampled.py",)),
    Mutant("gossip/exchange/sampled.py", "2.0 * self._timeout_s(", "0.5 * self._timeout_s(", ("gossip/exchange/test_sampled.py",)),
    Mutant("gossip/exchange/sampled.py", "return self.accepted(turn) < VOICES", "return False", ("gossip/exchange/test_sampled.py",)),
    Mutant("gossip/exchange/sampled.py", "_content(over) and not before:", "_content(over):", ("gossip/exchange/test_sampled.py",)),
    Mutant("gossip/exchange/sampled.py", "or len(wake.claims) < VOICES", "", ("gossip/exchange/test_sampled.py",)),
    Mutant("gossip/exchange/sampled.py", "if sampling.lone(turn):", "if True:", ("gossip/exchange/test_sampled.py",)),
    Mutant("gossip/exchange/pull.py", "max(2, len(self.questions) / 2)", "len(self.questions) / 2", ("**/exchange/test_pull.py",)),
    Mutant(
        "robust/distances.py",
        "if self.refuses(peer, round):\n            return _NOTHING",
        "if False:\n            return 0.0",
        ("**/test_distances.py",),
    ),
    Mutant("robust/distances.py", "self.losses.forget(peer)", "pass", ("**/test_own_loss.py",)),
    Mutant("robust/own_loss.py", "if far and largest", "if largest", ("**/test_own_loss.py",)),
    Mutant("robust/own_loss.py", "largest <= ALIKE and ", "", ("**/test_own_loss.py",)),
    Mutant(
        "robust/distances.py", "min(self._made(peer, round), default", "max(self._made(peer, round), default", ("**/test_distances.py",)
    ),
    Mutant("node/engine/exchange/broadcasts.py", "differ=differ or self._late_differ", "differ=differ", ("swarm/test_sparse_outer.py",)),
    Mutant("robust/own_loss.py", "at >= round - LATELY", "True", ("**/test_own_loss.py",)),
    Mutant("robust/own_loss.py", "elif isfinite(ratio):", "else:", ("**/test_own_loss.py",)),
    Mutant("node/engine/vectors.py", "self.examine(frozen.vector, committed)", "pass", ("**/exchange/test_defence.py",)),
    Mutant("node/engine/vectors.py", "self.examine(self._replica.shared(), [done])", "pass", ("**/exchange/test_defence.py",)),
    Mutant("gossip/exchange/progress.py", "return within[1] if", "return within[0] if", ("**/test_suspension.py",)),
    Mutant("gossip/exchange/progress.py", "partners if electors or len(partners) >= 2 else heard", "heard", ("**/test_progress.py",)),
    Mutant("gossip/exchange/progress.py", "electors or len(partners) >= 2 else", "partners else", ("**/test_progress.py",)),
    Mutant("gossip/exchange/lateness.py", "self._heard.get(peer, -inf) < opened and ", "", ("**/test_link_deadlines.py",)),
    Mutant("gossip/exchange/lateness.py", "(MISSED_LINKS if peer in self._heard else 1)", "1", ("**/test_link_deadlines.py",)),
    Mutant(
        "gossip/exchange/link_deadlines.py",
        "self._round is not None and self._lateness.is",
        "self._lateness.is",
        ("**/test_link_deadlines.py",),
    ),
    Mutant(
        "gossip/exchange/wait_rules.py",
        "_working_s(peer, context) if context.learned",
        "_working_s(peer, context) if True",
        ("**/test_wait_rules.py",),
    ),
    Mutant("gossip/exchange/wait_rules.py", "if not peer.mute:", "if True:", ("**/test_link_deadlines.py",)),
    Mutant("gossip/exchange/link_deadlines.py", "exchange_s if self.deadline.learned else min", "min", ("**/test_link_deadlines.py",)),
    Mutant(
        "gossip/exchange/link_deadlines.py",
        "exchange_s if self.deadline.learned else min",
        "exchange_s or min",
        ("**/test_link_deadlines.py",),
    ),
    Mutant("gossip/exchange/pairwise.py", "type(message) in ABOUT_EXCHANGES:", "False:", ("**/exchange/test_pairwise.py",)),
    Mutant("gossip/exchange/pairwise.py", "type(message) in ABOUT_EXCHANGES:", "True:", ("**/exchange/test_pairwise.py",)),
    Mutant("gossip/exchange/progress.py", "self._electorate.partners & heard", "self._electorate.partners", ("**/test_progress.py",)),
    Mutant("gossip/exchange/suspension.py", "own_s = elapsed_s - waited_s", "own_s = elapsed_s", ("**/test_suspension.py",)),
    Mutant("gossip/overlay/weights.py", "degree = max(mine, theirs)", "degree = min(mine, theirs)", ("gossip/overlay/test_graphs.py",)),
    Mutant("node/engine/exchange/shares.py", "requested <= most * (", "requested <= 100.0 * most * (", ("**/test_pairwise_exchange.py",)),
    Mutant(
        "node/engine/exchange/known_peers.py",
        "mine + (1.0 - done.theta) * decoded(done).value",
        "mine",
        ("**/exchange/test_differences.py",),
    ),
    Mutant(
        "node/engine/exchange/shares.py",
        "min(max(round, vectors.round - _APART), vectors.round + _APART)",
        "round",
        ("**/test_pairwise_exchange.py",),
    ),
    Mutant("node/engine/exchange/transactions.py", "exchanged(self._work() - began)", "exchanged(0.0)", ("**/test_large.py",)),
    Mutant(
        "node/engine/task_driver.py",
        "self.window.open and not self.session.rounds.waiting and",
        "self.window.open and",
        ("**/test_background_answers.py",),
    ),
    Mutant("node/engine/task_driver.py", "return self.window.open and", "return", ("**/test_background_answers.py",)),
    Mutant("node/engine/background_answers.py", "if reply is None:", "if False:", ("**/test_background_answers.py",)),
    Mutant("node/engine/flat_optimizer.py", "x.sub_(shift, alpha=lr)", "x.add_(shift, alpha=lr)", ("**/test_optimizers.py",)),
    Mutant("gossip/mix/flows.py", "min(theta, LARGEST_THETA)", "theta", ("**/test_pet.py",)),
    Mutant("gossip/exchange/pace.py", "0 if self.links else self._unlinked + 1", "0", ("**/test_pace_rounds.py",)),
    Mutant(
        "gossip/exchange/wait_rules.py", "2.0 * context.lag_s + context.unlinked_s", "2.0 * context.lag_s", ("**/test_link_deadlines.py",)
    ),
    Mutant("gossip/exchange/wait_rules.py", "0.0 if peer.withdrawn else", "", ("**/test_wait_rules.py",)),
    Mutant("gossip/exchange/link_deadlines.py", " or self._unlinked_s)", ")", ("**/test_link_deadlines.py",)),
    Mutant("gossip/exchange/link_deadlines.py", " - self._unlinked_s\n", "\n", ("**/test_link_deadlines.py",)),
    Mutant(
        "node/simulate/matrix/clocks.py", " + MAX_FACTOR * np.minimum(self._alone, MAX_UNLINKED_ROUNDS)[ends]", "", ("**/test_clocks.py",)
    ),
    Mutant("gossip/mix/flows.py", "phase.climb * ratio", "phase.climb", ("**/test_pet.py",)),
    Mutant("robust/clip.py", "norm <= tau:", "norm <= 2 * tau:", ("robust/test_clip.py",)),
    Mutant("robust/rules/selection.py", "count - f - 2)]", "count - f - 1)]", ("robust/rules/test_selection.py",)),
    Mutant("robust/rules/foolsgold.py", "_LEAST = 1e-6", "_LEAST = 0.0", ("**/test_clone_weights.py", "**/test_foolsgold.py")),
    Mutant("robust/sampling.py", "if 2 * b_hat(", "if b_hat(", ("robust/test_sampling.py",)),
    Mutant("node/net/libp2p/relay_slots.py", "or amount > circuit.left", "or False", ("**/test_relay_slots.py",)),
    Mutant("node/daemon/exchange/budget.py", "min(self._slot_s, self.concurrent_s)", "self._slot_s", ("swarm/test_overlap.py",)),
    Mutant("node/net/libp2p/relay_slots.py", "if target not in self._reserved or", "if", ("**/test_relay_slots.py",)),
    Mutant("node/net/libp2p/guards.py", "or _greediest(inbound, newcomer)", "or None", ("**/test_issue.py",)),
    Mutant("node/net/libp2p/relay_slots.py", "(origin or peer, peer)", "(peer, peer)", ("**/test_relay_slots.py",)),
    Mutant("node/net/libp2p/reservations.py", "min(lasts_s / 2, RENEW_S)", "lasts_s / 2", ("**/test_reservations.py",)),
    Mutant("node/net/libp2p/reservations.py", "missing = WANTED - len(self._held) -", "missing = WANTED -", ("**/test_reservations.py",)),
    Mutant("node/net/libp2p/punch.py", "max(now - self._asked_at, 0.0) / 2", "max(now - self._asked_at, 0.0)", ("**/test_punch.py",)),
    Mutant("node/net/libp2p/punch.py", 'self.opens or self.state != "answered"', "self.opens", ("**/test_punch.py",)),
)


def copied(folder: Path) -> Path:
    """Return a copy of what git knows or would add, links as links."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


@cache
def unchanged_fails(tree: Path, tests: tuple[Path, ...]) -> bool:
    """Return whether a test fails although no line is broken."""
    return fails(tree, tests)


def fails(tree: Path, tests: Sequence[Path]) -> bool:
    """Return whether a test fails. Raises RuntimeError if pytest could not run them."""
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *map(str, tests)]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode > 1:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return done.returncode == 1


def outcome(mutant: Mutant, tree: Path) -> str:
    """Return the outcome of one mutant: killed, LIVES, or the error in its entry in the table."""
    path = tree / mutant.file
    whole = path.read_text() if path.is_file() else ""
    tests = sorted({test for pattern in mutant.tests for test in (tree / "tests").glob(pattern)})
    if whole.count(mutant.text) != 1:
        return f"STALE: the text occurs {whole.count(mutant.text)} times"
    if not tests:
        return "STALE: no such test"
    if unchanged_fails(tree, tuple(tests)):
        return "STALE: its tests fail without it"
    _replace(path, whole.replace(mutant.text, mutant.broken))
    try:
        return "killed" if fails(tree, tests) else "LIVES"
    except subprocess.TimeoutExpired:
        return "killed by the time limit"
    finally:
        _replace(path, whole)


def _replace(path: Path, text: str) -> None:
    """Without its bytecode, which Python takes for that of another text of the same length and second."""
    path.write_text(text)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def run(mutants: Iterable[Mutant]) -> int:
    """Print a table; return the exit status."""
    survived = 0
    with tempfile.TemporaryDirectory(prefix="starling-mutants-") as folder:
        tree = copied(Path(folder))
        for mutant in mutants:
            began = time.monotonic()
            what = outcome(mutant, tree)
            survived += not what.startswith("killed")
            print(
                f"{what:<10} {time.monotonic() - began:5.1f} s  {mutant.file}: {mutant.text} -> {mutant.broken or '(nothing)'}", flush=True
            )
    print(f"{survived} not killed")
    return int(survived > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the table, or its rows of some files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", help="only mutants of these files")
    chosen = parser.parse_args(arguments).files
    if shutil.which("git") is None:
        parser.error("git is missing: it lists the files to copy; install it and run this again")
    return run(mutant for mutant in MUTANTS if not chosen or mutant.file in chosen)


if __name__ == "__main__":
    sys.exit(main())

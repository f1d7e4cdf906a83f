"""Names of the attacks, without torch: the command line checks a name before anything heavy is loaded."""

from __future__ import annotations

VECTOR = (
    "sign_flip", "gaussian", "zero", "alie", "ipm", "foe", "mimic", "min_max", "min_sum", "dissensus", "spectral", "sleeper",
    "equivocation", "stale", "free_rider", "era", "era_max",
)  # fmt: skip
DATA = ("label_flip", "backdoor", "clones")
TRACKER = ("tracker_const", "tracker_neg", "tracker_rand", "tracker_small", "tracker_one_shot")
WIRE = ("nan", "huge", "bomb", "bad_indices", "wrong_length", "wrong_dtype")
NAMES = VECTOR + DATA + TRACKER + WIRE

"""Signs and their colors on the dark and the light theme. A sign or word accompanies every color, so that none is needed."""

from types import MappingProxyType
from typing import Final, Literal

Role = Literal["good", "warn", "bad", "dim", "plain", "strong", "own"]

# On a background of #121212 and of #e0e0e0 all of these have a contrast of at least 4.5 : 1 (a test says so).
DARK: Final = MappingProxyType(
    {"good": "#6cc26c", "warn": "#e0b341", "bad": "bold #ff7b72", "dim": "#9a9a9a", "plain": "", "strong": "bold", "own": "bold #7db7ff"}
)
LIGHT: Final = MappingProxyType(
    {"good": "#0b5d1e", "warn": "#6f4a00", "bad": "bold #a3000c", "dim": "#555555", "plain": "", "strong": "bold", "own": "bold #003f9e"}
)

NODE_SIGNS: Final = MappingProxyType(
    {
        "starting": ("…", "warn"),
        "joining": ("…", "warn"),
        "training": ("●", "good"),
        "waiting": ("○", "warn"),
        "finished": ("✓", "good"),
        "leaving": ("←", "warn"),
        "failed": ("✗", "bad"),
    }
)
PEER_SIGNS: Final = MappingProxyType(
    {
        "alive": ("●", "good"),
        "suspect": ("?", "warn"),
        "dead": ("✗", "bad"),
        "left": ("←", "dim"),
        "quarantined": ("!", "warn"),
        "banned": ("⊘", "bad"),
    }
)
LEVEL_SIGNS: Final = MappingProxyType({"info": (" ", "plain"), "warning": ("!", "warn"), "error": ("✗", "bad")})
OUTCOME_SIGNS: Final = MappingProxyType(
    {"committed": ("✓", "good"), "aborted": ("✗", "bad"), "busy": ("○", "warn"), "timeout": ("…", "warn")}
)
VERDICT_SIGNS: Final = MappingProxyType({"fail": ("✗", "bad"), "warn": ("!", "warn"), "unknown": ("–", "dim"), "ok": ("✓", "good")})
"""In the order in which they are shown."""


def style(role: str, *, dark: bool) -> str:
    """Return a Rich style for a role, on the theme's background."""
    return (DARK if dark else LIGHT)[role]

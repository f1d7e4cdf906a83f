"""An attack: every receiver is sent its own vector, so that nobody learns anything."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Echo:
    targets: ClassVar[str] = "vector"

    def craft(self, memory, scene, generator):
        return scene.receivers, memory

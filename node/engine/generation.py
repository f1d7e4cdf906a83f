"""Text from a model that predicts the next token.

Shapes: t tokens of the window, v tokens of the vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Generator, Tensor


def generate(
    logits: Callable[[Tensor], Tensor], prompt: Sequence[int], *, context: int, count: int, temperature: float, chance: Generator
) -> Iterator[int]:
    """Yield `count` tokens that follow a prompt, one after the other; the model sees the last `context` of all so far.

    Args:
        logits: tokens (1, t) int64, 1 ≤ t ≤ context -> (1, t, v), of the token that follows each.
        prompt: at least one token.
        context: the longest window.
        count: of tokens.
        temperature: 0 takes the likeliest token; 1 draws by the model's probabilities, less makes likely ones likelier.
        chance: a generator on the CPU.
    """
    so_far = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            last = logits(torch.tensor([so_far[-context:]]))[0, -1].float().cpu()
        if temperature:
            scaled = (last - last.max()) / temperature  # a small temperature would make infinities otherwise
            token = int(torch.multinomial(scaled.softmax(-1), 1, generator=chance))
        else:
            token = int(last.argmax())
        so_far.append(token)
        yield token

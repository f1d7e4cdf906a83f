"""Generated tokens follow the model's probabilities, and the model sees no more than its window."""

import pytest
import torch

from starling.node.engine.generation import generate

SHARES = torch.tensor([0.5, 0.3, 0.2])


def drawn(count, temperature, seed=0, prompt=(0,), context=4, logits=None):
    seen = []

    def always(window):
        seen.append(window[0].tolist())
        return SHARES.log().expand(1, window.shape[1], 3)

    chance = torch.Generator().manual_seed(seed)
    made = generate(logits or always, prompt, context=context, count=count, temperature=temperature, chance=chance)
    return list(made), seen


def test_temperature_0_takes_the_most_likely_token():
    assert drawn(5, 0.0)[0] == [0] * 5


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_by_the_tempered_probabilities(temperature):
    tokens, _ = drawn(4000, temperature)
    shares = torch.bincount(torch.tensor(tokens), minlength=3) / len(tokens)
    expected = SHARES ** (1 / temperature)
    torch.testing.assert_close(shares, expected / expected.sum(), atol=0.03, rtol=0.0)


def test_a_tiny_temperature_gives_no_infinity():
    assert drawn(5, 1e-40)[0] == [0] * 5


def test_the_model_sees_the_last_tokens_that_fit_its_window():
    """Each token is the previous one plus one, so the window must move along."""
    tokens, _ = drawn(6, 0.0, prompt=(1, 2), context=3, logits=lambda window: torch.eye(12)[(window + 1) % 12])
    assert tokens == [3, 4, 5, 6, 7, 8]
    _, seen = drawn(4, 0.0, prompt=(1, 2), context=3)
    assert seen == [[1, 2], [1, 2, 0], [2, 0, 0], [0, 0, 0]]

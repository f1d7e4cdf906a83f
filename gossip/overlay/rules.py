"""The weight of an edge, from the degrees at its ends. What edges leave of 1 is a node's own weight.

    metropolis_hastings   1/(1 + the larger degree of the two): doubly stochastic, and a neighbor's degree is all to know
    max_degree            1/(1 + the largest degree of all): doubly stochastic; slow where degrees differ much
    uniform               1/(1 + own degree): every model heard counts the same. Rows sum to 1, columns do not: models that
                          are pulled so agree on a mean in which the well-connected count more

Source: Xiao, Boyd and Lall 2005, "A Scheme for Robust Distributed Sensor Fusion Based on Average Consensus" (max-degree
and Metropolis weights).
"""

from __future__ import annotations

RULES = ("metropolis_hastings", "max_degree", "uniform")


def checked(rule: str) -> str:
    """The same.

    Raises:
        ValueError: none of RULES.
    """
    if rule not in RULES:
        raise ValueError(f"weights must be one of {', '.join(RULES)}, got {rule!r}")
    return rule


def edge_weight(rule: str, mine: int, theirs: int, largest: int) -> float:
    """What a node gives to what it hears over an edge.

    Args:
        rule: one of RULES.
        mine: degree of the node, itself left out.
        theirs: degree of the neighbor.
        largest: largest degree in the graph.
    """
    match rule:
        case "metropolis_hastings":
            degree = max(mine, theirs)
        case "max_degree":
            degree = largest
        case _:
            degree = mine
    return 1.0 / (1 + degree)

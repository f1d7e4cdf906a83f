"""Long lists of words, written as lines of text."""


def words(*lines: str) -> tuple[str, ...]:
    """The words of all lines."""
    return tuple(word for line in lines for word in line.split())

"""A page as a Jupyter notebook: `python tools/notebook.py PAGE.md NOTEBOOK.ipynb`.

Blocks marked ```` ```python notebook ```` become cells of code, all between them cells of text.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

CELL = re.compile(r"^```python notebook\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def cells(page: str) -> list[str]:
    """Return the code of each cell, in order."""
    return CELL.findall(page)


def notebook(page: str) -> str:
    """JSON of a notebook, format 4.5, without outputs."""
    made: list[dict[str, object]] = []
    for number, (code, text) in enumerate(_pieces(page)):
        cell: dict[str, object] = {"id": f"cell-{number}", "metadata": {}, "source": text.strip().splitlines(keepends=True)}
        only_code: dict[str, object] = {"execution_count": None, "outputs": []} if code else {}
        made.append({"cell_type": "code" if code else "markdown", **cell, **only_code})
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": made}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _pieces(page: str) -> Iterator[tuple[bool, str]]:
    for position, text in enumerate(CELL.split(page)):
        if text.strip():
            yield position % 2 == 1, text


if __name__ == "__main__":
    source, target = sys.argv[1:]
    Path(target).write_text(notebook(Path(source).read_text()))

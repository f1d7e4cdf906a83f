"""Lines and words on a grid of braille dots: two dots wide and four high in every cell. Pure, independent of nodes."""

from collections.abc import Callable

from rich.cells import cell_len
from rich.text import Text

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
BLANK = 0x2800


class Canvas:
    """A picture of `width` by `height` cells, >= 0."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._bits = [[0] * width for _ in range(height)]
        self._roles: list[list[str]] = [["dim"] * width for _ in range(height)]
        self._words: list[list[str]] = [[""] * width for _ in range(height)]

    def dot(self, x: int, y: int, role: str) -> None:
        """Set a dot, 0 <= x < 2·width, 0 <= y < 4·height; outside nothing happens. The last role in a cell is its color."""
        column, row = x // 2, y // 4
        if 0 <= column < self.width and 0 <= row < self.height:
            self._bits[row][column] |= DOTS[y % 4][x % 2]
            self._roles[row][column] = role

    def line(self, start: tuple[float, float], end: tuple[float, float], role: str, *, every: int = 1) -> None:
        """A straight line in dots; with `every` = 3 only every third dot of it."""
        (x0, y0), (x1, y1) = start, end
        steps = max(1, round(max(abs(x1 - x0), abs(y1 - y0))))
        for step in range(0, steps + 1, every):
            part = step / steps
            self.dot(round(x0 + (x1 - x0) * part), round(y0 + (y1 - y0) * part), role)

    def write(self, column: int, row: int, text: str, role: str) -> None:
        """Text over the dots; moved inside where it would stick out, cut where it does not fit."""
        while cell_len(text) > self.width:
            text = text[:-1]
        column = min(max(0, column), self.width - cell_len(text))
        if not 0 <= row < self.height:
            return
        for character in text:
            self._words[row][column] = character
            self._roles[row][column] = role
            for covered in range(1, cell_len(character)):
                self._words[row][column + covered] = "\0"
            column += cell_len(character)

    def text(self, style: Callable[[str], str]) -> Text:
        """Return the picture; `style` gives a role's Rich style."""
        picture = Text(no_wrap=True, end="")
        for row in range(self.height):
            run, role = "", ""
            for column in range(self.width):
                word, bits = self._words[row][column], self._bits[row][column]
                if word == "\0":
                    continue
                cell = word or (chr(BLANK + bits) if bits else " ")
                if self._roles[row][column] != role:
                    picture.append(run, style=style(role) if role else "")
                    run, role = "", self._roles[row][column]
                run += cell
            picture.append(run, style=style(role) if role else "")
            picture.append("\n" if row < self.height - 1 else "")
        return picture

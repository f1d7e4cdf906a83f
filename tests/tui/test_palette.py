"""Every color is legible in both themes, and none carries information alone."""

import pytest
from rich.color import Color
from rich.style import Style

from starling.tui.app import DARK as DARK_THEME
from starling.tui.app import LIGHT as LIGHT_THEME
from starling.tui.app import StarlingApp
from starling.tui.drawing.palette import DARK, LEVEL_SIGNS, LIGHT, NODE_SIGNS, OUTCOME_SIGNS, PEER_SIGNS
from tests.harness.tui.looking import CannedSource


def luminance(color):
    parts = [each / 255 for each in color.get_truecolor()]
    linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("theme", "colors"), [(DARK_THEME, DARK), (LIGHT_THEME, LIGHT)], ids=["dark", "light"])
def test_every_color_has_the_contrast_that_reading_needs(theme, colors):
    """4.5 : 1, as WCAG 2.1 requires for text."""
    app = StarlingApp([CannedSource([()])])
    background = luminance(Color.parse(app.get_theme(theme).to_color_system().generate()["background"]))
    for role, name in colors.items():
        color = Style.parse(name).color if name else None
        if color is not None:
            low, high = sorted((luminance(color), background))
            assert (high + 0.05) / (low + 0.05) >= 4.5, role


@pytest.mark.parametrize("signs", [NODE_SIGNS, PEER_SIGNS, LEVEL_SIGNS, OUTCOME_SIGNS])
def test_every_color_has_a_sign(signs):
    assert all(len(sign) == 1 and role in DARK for sign, role in signs.values())

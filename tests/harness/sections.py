"""Sections of settings for tests over many kinds."""

from starling.node.config.parts import typed


def taken(section, **keys):
    """Return a section with those of `keys` that its parts take."""
    fields = typed(section, keys).__struct_fields__
    return section(**{key: value for key, value in keys.items() if key in fields})

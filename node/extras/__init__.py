"""Optional capabilities, each in its own folder. Catalogues name them, and no other part imports them."""

"""Capabilities that not every swarm has, each in a folder of its own. Catalogues name them, and no other part imports them."""

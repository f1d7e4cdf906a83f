"""The daemon: trio services that connect network, engine and state machines."""

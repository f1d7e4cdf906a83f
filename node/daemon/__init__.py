"""The trio shells: network, engine and cores joined."""

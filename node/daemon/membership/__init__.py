"""Members, neighbors and admission as services."""

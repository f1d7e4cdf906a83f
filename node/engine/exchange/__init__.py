"""The engine's half of exchanges: one class per kind, chosen by `exchange_of`."""

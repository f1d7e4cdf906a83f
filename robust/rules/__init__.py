"""Robust combining rules, one file per family. `robust.catalogue` names them, `docs/robustness.md` compares them."""

"""Robust combining rules, one file per family. `starling.robust.catalogue` names them, `docs/robustness.md` compares them."""

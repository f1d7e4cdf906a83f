"""Decoders of untrusted bytes under attack: each accepts its input or refuses it in the one documented way.

A *target* (`target.py`) is one decoder with its contract; `catalogue.py` lists them. Two fuzzers drive the same targets: hypothesis with
mutations of valid inputs (`test_decoders.py`), and libFuzzer through atheris, which sees the branches taken (`run.py`, `test_fuzzer.py`).
Inputs that once broke a contract are in `corpus/TARGET/` and are always tried first.
"""

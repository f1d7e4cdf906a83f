"""Every decoder under attack: what reads bytes of others takes them or refuses them in the one way it promises.

A *target* (`target.py`) is one decoder with its promise; `catalogue.py` names them all. Two fuzzers drive the same targets: hypothesis
with mutations of valid inputs (`test_decoders.py`), and libFuzzer by way of atheris, which sees which branches an input takes
(`run.py`, `test_fuzzer.py`). Inputs that once broke a promise lie in `corpus/TARGET/` and are tried first, for ever.
"""

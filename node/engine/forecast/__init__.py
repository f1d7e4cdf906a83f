"""Forecast the seconds of a local step on this machine, before one is done."""

"""Texts of screens, without a toolkit: the terminal and the browser show the same. No file here imports Textual."""

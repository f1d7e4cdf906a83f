"""The web page: what the terminal UI shows, served to a browser on this machine."""

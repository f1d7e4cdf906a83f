"""What screens say, without a toolkit: the terminal and the browser draw the same words. No file here imports Textual."""

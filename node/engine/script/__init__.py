"""An engine whose local steps are done by a training script of the owner's, in the script's own process."""

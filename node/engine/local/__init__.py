"""Local steps: a model on this machine, the sources of its gradients, and how they change it."""

"""What a local step is: a model on this machine, where its gradients come from, and how they change it."""

"""Several processes of one machine that compute the gradients of one node (`ranks`)."""

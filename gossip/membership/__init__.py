"""Who is in the swarm: signed records, failure detector, anti-entropy; torch-free."""

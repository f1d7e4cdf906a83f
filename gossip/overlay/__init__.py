"""Who meets whom: mixing matrices a row at a time, torch-free."""

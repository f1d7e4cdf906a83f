"""Membership credentials and the rules that admit them. Pure except for `issue`, which stores issued invitations; torch-free."""

"""Rights of peers, as the policy gives them: each link and each address is checked here."""

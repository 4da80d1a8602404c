"""The user's side: the job, the session, and the loop between them."""

"""A command may be killed anywhere: what is left passes the audit, and the next run completes it."""

"""Reads a dataset's goal events and appends hindsight variants to another dataset; audits rewards."""

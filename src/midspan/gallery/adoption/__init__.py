"""Galleries over what an application has already: in place, or copied from its files.

PostgreSQL: the application's table stays the truth of items and old vectors. Triggers note what it
writes; new vectors are in a table of ours until they are handed over.
"""

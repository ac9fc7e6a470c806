"""The timeline in the forms that viewers read."""

"""The pictures and the style of the report's page."""

"""Generated documents: manual pages, README tables and the page of the configuration file."""

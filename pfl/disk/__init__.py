"""Files: written whole and never through a link, read within limits."""

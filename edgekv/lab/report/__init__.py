"""Shows measurements as pictures and as one self-contained HTML page. A step decodes one token."""

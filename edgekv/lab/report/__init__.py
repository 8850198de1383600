"""What was measured, as pictures and as one self-contained HTML page. A step decodes one token."""

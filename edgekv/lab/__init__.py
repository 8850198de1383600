"""The laboratory: measures and studies the product, and is never imported by it. A step decodes one token."""

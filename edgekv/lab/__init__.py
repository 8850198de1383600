"""The laboratory measures and studies the product, which never imports it. A step decodes one token."""

"""What commands share: options, lists, tables, progress."""
